"""Every order that a profile states is taken by `certify`, and the op that adds in it is certified against its node."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from moeparity.bisection.outline import outline_checkpoint
from moeparity.errors import MoeparityError
from moeparity.numerics.dtypes import torch_dtype
from moeparity.numerics.gemm_forms import ONEDNN
from moeparity.numerics.orders import NATIVE, parse
from moeparity.numerics.summation import sum_axis
from moeparity.numerics.tensor_core.gemm_orders import USUAL
from moeparity.ops.norm.reductions import RULES
from moeparity.ops.registry import OPS
from moeparity.plan.bound import Plan
from moeparity.plan.graph import Node
from moeparity.probe.calls import Setup
from moeparity.probe.certify import Claim, ClassVerdict, certify
from moeparity.probe.run import read_claim
from moeparity.probe.target import KINDS, Function

ROOT = Path(__file__).parents[2]
CHECKPOINT = ROOT / "checkpoints" / "wide"
"""Its widths are multiples of 128, as a profile of weights in fp8 needs them."""
PROFILES = sorted(path.stem for path in (ROOT / "graphs" / "profiles").glob("*.yaml"))
HELD_TO = ("order", "accumulate", "weighted", "square", "statistic", "sm_count", "tensor", "score_site", "leaves")
OF_LIBRARIES = {NATIVE, ONEDNN, *USUAL}
"""A library's own kernel, or tensor cores, which no order states: tests/numerics/test_gemm.py,
tests/real/test_vllm_cpu_gemm.py, tests/ops/test_tensor_cores.py.
"""


class Sum(NamedTuple):
    """A node that adds in a stated order, with all that its kernel is told."""

    node: Node
    active: Mapping[str, Any]
    choices_elsewhere: Mapping[str, Any]


@cache
def plans() -> list[Plan]:
    """Every shipped profile, bound."""
    return [outline_checkpoint(CHECKPOINT, profile).plans[-1] for profile in PROFILES]


@cache
def stated_sums() -> dict[tuple[tuple[str, str], ...], Sum]:
    """The nodes of every shipped profile whose order is stated, one of each kind, by what certify goes by."""
    sums: dict[tuple[tuple[str, str], ...], Sum] = {}
    for bound in plans():
        for node in bound.graph.nodes:
            active, told_choices = dict(bound.active(node)), dict(bound.told_to(node))
            if active.get("order", NATIVE) not in OF_LIBRARIES and active.get("collective", "none") == "none":
                key = tuple((name, str(v)) for name, v in {**told_choices, **active}.items() if name in HELD_TO)
                sums.setdefault((("op", node.op.name), *key), Sum(node, active, told_choices))
    return sums


def rms_norm(of: Sum) -> Function:
    kernel, at = OPS["rms_norm"].load(), of.node.op.settings(of.active)

    def norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return kernel(x, w={"weight": weight}, p={"eps": eps, "heads": None}, at=at)

    return Function("op rms_norm", norm, KINDS["rms_norm"])


def combine(of: Sum) -> Function:
    kernel, at = OPS["combine"].load(), of.node.op.settings({**of.choices_elsewhere, **of.active})

    def added(rows: torch.Tensor, weights: torch.Tensor | None = None) -> torch.Tensor:
        ids = torch.arange(rows.shape[1]).expand(1, *rows.shape[:2])
        weights = None if weights is None else weights.unsqueeze(0)
        return kernel(rows.unsqueeze(0), ids, weights, w={}, p=of.node.params, at=at).squeeze(0)

    if of.choices_elsewhere["score_site"] == "combine":
        return Function("op combine", added, KINDS["combine"])
    return Function("op combine", lambda x: added(x.unsqueeze(-1)).squeeze(-1), KINDS["sum"])


def written_out(of: Sum) -> Function:
    """A sum over ranks or a vocabulary, whose op does more than add."""
    order, accumulate = parse(of.active["order"]), torch_dtype(of.active.get("accumulate", "fp32"))
    return Function("sum", lambda x: sum_axis(x, order, -1, accumulate=accumulate).to(x.dtype), KINDS["sum"])


def certified(of: Sum) -> tuple[Claim, list[ClassVerdict]]:
    """A node's kernel held to the node, at the first of some widths that its launch takes."""
    function = {"rms_norm": rms_norm, "combine": combine}.get(of.node.op.name, written_out)(of)
    kind = function.kind
    claim = read_claim(of.node.name, None, {name: str(value) for name, value in of.active.items()})
    refused = None
    for n in (256, 512, 1024, 2048) if kind.name == "rms_norm" else (8,):
        setup = Setup(n=n, dtype=torch.bfloat16, m=min(kind.m, 32), width=min(kind.width, 64))
        try:
            return claim, certify(function, [setup], claim)
        except MoeparityError as error:
            refused = error
    raise AssertionError(refused)


def test_there_are_stated_orders_to_hold_to() -> None:
    """Nothing below is empty: norms by launch rules of several engines, combines with and without fma."""
    orders = {of.active["order"] for of in stated_sums().values()}
    assert len(orders & set(RULES)) >= 8
    assert {"sequential", "sequential(fma)"} <= orders


def test_every_stated_order_is_that_of_its_own_kernel() -> None:
    """All the nodes of all the profiles; a transformer_engine statistic has no order, and is told so below."""
    for key, of in stated_sums().items():
        if of.active["order"].startswith("unordered"):
            continue  # an order of arrival: a kernel that had it would be another each time
        if of.node.op.name == "experts":
            continue  # products of a GEMM by fma: tests/numerics/test_gemm.py
        _, verdicts = certified(of)
        assert verdicts, key
        assert all(verdict.holds for verdict in verdicts), (key, verdicts)


@pytest.mark.parametrize("rule", ["flashinfer.rms_norm", "vllm.fused_add_rms_norm", "vllm.batch_invariant"])
def test_a_kernel_of_another_order_is_not_certified_against_a_launch_rule(rule: str) -> None:
    of = next(of for of in stated_sums().values() if of.active["order"] == "flashinfer.cutedsl_rms_norm")
    claim = read_claim(rule, None, None)
    verdicts = certify(rms_norm(of), [Setup(n=256, dtype=torch.bfloat16, m=8, width=1)], claim)
    assert not all(verdict.holds for verdict in verdicts)


def texts() -> list[str]:
    """Every value that an order attribute of an op, or a rule of a profile, has."""
    declared = [value for op in OPS.values() for a in op.attributes if a.order for value in a.values]
    stated = [
        str(value)
        for plan in plans()
        for node in plan.graph.nodes
        for a in node.op.attributes
        if a.order and (value := plan.active(node).get(a.name)) is not None
    ]
    return sorted({*declared, *stated} - OF_LIBRARIES)


def test_every_shipped_order_text_is_one_that_certify_takes() -> None:
    shipped = texts()
    assert len(shipped) > len(RULES)
    for text in shipped:
        assert read_claim(text, None, None).order == text
        if text in RULES or parse(text).fma:
            continue
        function = Function("f", lambda x: x.sum(-1), KINDS["sum"])
        assert certify(function, [Setup(n=16, dtype=torch.float32, m=4, width=1)], read_claim(text, None, None))


@pytest.mark.parametrize("name", RULES)
def test_the_order_a_launch_rule_comes_to_is_taken_for_a_norm(name: str) -> None:
    """Written out as the rule gives it, with its fma: the text that `explain` prints."""
    claim = read_claim(name, None, None)
    for n in (256, 512, 1024, 2048, 4096):
        setup = Setup(n=n, dtype=torch.bfloat16, m=4, width=1)
        try:
            order = claim.order_at(setup)
        except ValueError:
            continue
        written = read_claim(str(order), None, None)
        assert written.order_at(setup) == order
        return
    pytest.fail(f"{name} takes none of the widths")


def test_a_launch_that_a_rule_refuses_is_a_mistake() -> None:
    function = Function("f", lambda x, weight, eps: x * weight + eps, KINDS["rms_norm"])
    with pytest.raises(MoeparityError, match=r"needs .* not 100 elements in fp32, with --n 100\."):
        certify(function, [Setup(n=100, dtype=torch.float32, m=4, width=1)], read_claim("sglang.rms_norm", None, None))
