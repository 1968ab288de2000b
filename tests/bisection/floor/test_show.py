"""What the terminal shows of the floor and of the oracle."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from moeparity.bisection.floor.data import Floor, FloorTrial
from moeparity.bisection.floor.show import show as show_floor
from moeparity.bisection.oracle.data import Distance, Oracle, OracleNode
from moeparity.bisection.oracle.show import show as show_oracle
from moeparity.metrics.verdict import Interval
from moeparity.output.blocks import Group
from tests.bisection.reports import REPORT
from tests.printed import printed


def shown(groups: Iterable[Group]) -> str:
    (group,) = groups
    return "\n".join(line.rstrip() for line in printed(group.blocks, 80).splitlines())


def interval(estimate: float) -> Interval:
    return Interval(estimate=estimate, low=estimate / 2, high=estimate * 2, level=0.95, method="bootstrap-t")


def trial(name: str, estimate: float, *, bit_identical: bool, flips: float | None) -> FloorTrial:
    return FloorTrial(name=name, value=interval(estimate), bit_identical=bit_identical, flipped_routes=flips)


def test_floor() -> None:
    trials = (
        trial("micro-batch 1", 0.0, bit_identical=True, flips=0.0),
        trial("orders drawn with seed 0", 1.44e-4, bit_identical=False, flips=0.013),
        trial("orders drawn with seed 1", 2e-5, bit_identical=False, flips=None),
    )
    floor = Floor(trials=trials, largest=1.44e-4, bit_identical=False, ratio=2.0, reading=("k3 is 2 x the floor.",))
    assert shown(show_floor(replace(REPORT, floor=floor))) == (
        "the reference against itself, with  k3             flips\n"
        "micro-batch 1                       bit-identical\n"
        "orders drawn with seed 0            1.44e-04       1.30%\n"
        "orders drawn with seed 1            2.00e-05\n"
        "- k3 is 2 x the floor."
    )


def test_no_trials_show_no_table() -> None:
    floor = Floor(trials=(), largest=0.0, bit_identical=False, ratio=None, reading=("There is no floor.",))
    assert shown(show_floor(replace(REPORT, floor=floor))) == "- There is no floor."


def test_oracle() -> None:
    def node(name: str, reference: float, candidate: float) -> OracleNode:
        of_reference, of_candidate = (Distance(relative_l2=size, max_abs=size) for size in (reference, candidate))
        return OracleNode(
            node=name, op="add", layer=0, reference=of_reference, candidate=of_candidate, ratio=candidate / reference
        )

    layers = (node("layers[0].moe.residual", 6.14e-3, 4.76e-3), node("lm_head", 6e-3, 3e-3))
    oracle = Oracle(
        kl_reference=interval(3e-4),
        kl_candidate=interval(1e-4),
        kl_change=interval(-2e-4),
        standing="nearer",
        reading="The candidate is nearer the truth.",
        layers=layers,
        nodes=layers,
    )
    assert shown(show_oracle(replace(REPORT, oracle=oracle))) == (
        "distance from fp64 after  reference  candidate  ratio\n"
        "layers[0].moe.residual    6.14e-03   4.76e-03   0.78\n"
        "lm_head                   6.00e-03   3.00e-03   0.50\n"
        "relative L2 of carried values; ratio: candidate over reference.\n"
        "- The candidate is nearer the truth."
    )
