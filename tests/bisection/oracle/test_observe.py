"""Distances from the oracle, and which side is shown to be nearer it."""

from __future__ import annotations

import math

import pytest
import torch

from moeparity.bisection.oracle.measure import Distances, DistanceSum, NodeDistances, accuracy, distance
from moeparity.metrics.exact import Exact
from moeparity.metrics.tokens import SequenceSums
from tests.bisection.test_observers import blocks, node, view

F64 = torch.float64


def test_distance_is_taken_in_fp64() -> None:
    truth = torch.tensor([[3.0, 4.0], [0.0, 1 + 2.0**-40]], dtype=F64)
    measured = distance(truth.to(torch.bfloat16), truth)
    assert (measured.squared, measured.largest) == (2.0**-80, 2.0**-40)
    assert measured.squared_oracle == pytest.approx(26.0, rel=1e-9)
    assert measured.relative_l2 == pytest.approx(2.0**-40 / math.sqrt(26), rel=1e-9)
    assert distance(truth, truth).relative_l2 == 0.0


def test_distances_add_up() -> None:
    g = torch.Generator().manual_seed(0)
    x, y = (torch.randn(6, 5, generator=g, dtype=F64) for _ in range(2))
    whole, parts = distance(x, y), distance(x[:2], y[:2]) + distance(x[2:], y[2:])
    assert parts.largest == whole.largest
    assert (parts.squared, parts.squared_oracle) == (
        pytest.approx(whole.squared, rel=1e-14),
        pytest.approx(whole.squared_oracle, rel=1e-14),
    )


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("first", [True, False])
def test_what_is_not_finite_does_not_look_near(bad: float, first: bool) -> None:
    not_finite, finite = distance(torch.tensor([bad]), torch.ones(1)), distance(torch.zeros(1), torch.ones(1))
    total = not_finite + finite if first else finite + not_finite
    assert not math.isfinite(total.squared)
    assert not math.isfinite(total.largest)
    assert not math.isfinite(total.relative_l2)


def of(squared: float) -> DistanceSum:
    return DistanceSum(squared=Exact(squared), largest=0.0, squared_oracle=Exact(1.0))


def test_ratio() -> None:
    assert NodeDistances(node(), of(4.0), of(1.0)).ratio == 0.5
    assert NodeDistances(node(), of(0.0), of(0.0)).ratio == 1.0
    assert NodeDistances(node(), of(0.0), of(1.0)).ratio == math.inf
    assert NodeDistances(node(), of(1.0), of(0.0)).ratio == 0.0
    assert math.isnan(NodeDistances(node(), of(0.0), of(math.nan)).ratio)


def test_all_waves_of_a_node_are_seen() -> None:
    observer = Distances()
    for first in (0, 2):
        values = {
            "oracle": blocks([([1.0, 1.0], 0), ([2.0, 2.0], 0)], first=first),
            "reference": blocks([([1.0, 3.0], 1), ([2.0, 2.0], 0)], first=first),
            "candidate": blocks([([1.0, 1.0], 0), ([2.0, 3.0], 1)], first=first),
        }
        observer.see(view(values, {}, first=first))
    (record,) = observer.nodes.values()
    assert (record.reference.squared, record.candidate.squared, record.reference.squared_oracle) == (8.0, 2.0, 20.0)
    assert (record.reference.largest, record.candidate.largest, record.ratio) == (2.0, 1.0, 0.5)


def test_slots_and_walkers_that_did_not_run_are_passed_over() -> None:
    observer = Distances()
    same = blocks([([1.0], 0), ([1.0], 0)])
    observer.see(view({"reference": same, "oracle": same}, {}))
    observer.see(view({"reference": same, "oracle": same, "candidate": same}, {}, op="experts"))
    assert observer.nodes == {}


def sums(kl: torch.Tensor) -> SequenceSums:
    zero, tokens = torch.zeros_like(kl), torch.full_like(kl, 10.0)
    names = [f for f in SequenceSums.__dataclass_fields__ if f not in ("tokens", "kl_candidate_reference")]
    return SequenceSums(tokens=tokens, kl_candidate_reference=kl, **dict.fromkeys(names, zero))


def kls(sequences: int = 60, scale: float = 1.0) -> torch.Tensor:
    return torch.rand(sequences, generator=torch.Generator().manual_seed(1), dtype=F64) * scale


def test_the_interval_of_the_paired_difference_decides() -> None:
    near, far = sums(kls() * 0.6), sums(kls())
    assert accuracy(far, near).standing == "nearer"
    assert accuracy(near, far).standing == "farther"
    standing = accuracy(far, near)
    assert standing.change.high < 0
    assert (standing.reference.estimate, standing.candidate.estimate) == (
        pytest.approx(float(kls().mean()) / 10),
        pytest.approx(float(kls().mean()) / 10 * 0.6),
    )


def test_chance_decides_nothing() -> None:
    noise = torch.randn(60, generator=torch.Generator().manual_seed(2), dtype=F64)
    assert accuracy(sums(kls()), sums(kls() + noise - noise.mean() + 0.01)).standing == "undecided"


def test_few_sequences_decide_nothing() -> None:
    assert accuracy(sums(kls(24)), sums(kls(24) * 0.1)).standing == "undecided"
    assert accuracy(sums(kls(25)), sums(kls(25) * 0.1)).standing == "nearer"


def test_equal_in_every_sequence_is_level_at_any_size() -> None:
    assert accuracy(sums(kls(2)), sums(kls(2))).standing == "level"


def test_what_is_not_finite_decides_nothing() -> None:
    broken = kls()
    broken[3] = math.nan
    assert accuracy(sums(kls()), sums(broken)).standing == "undecided"
