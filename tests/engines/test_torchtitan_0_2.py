"""Our kernels, as their attributes state torchtitan 0.2.2's MoE layer, against that layer on CPU, bit for bit."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from moeparity.numerics.bits import same_bits
from tests.engines import titan
from tests.engines.live import Found, ask
from tests.ops.plain import BF16, FP32, assert_bits, random
from tests.verified import record

pytestmark = pytest.mark.live
LIVE = "torchtitan 0.2.2"

B, T = 2, 19
DTYPES = {"bf16": BF16, "fp32": FP32}
NAMES = {
    "gate": "router.gate.weight",
    **{f"expert.{name}": f"experts.{name}" for name in ("w1", "w2", "w3")},
    **{f"shared.{name}": f"shared_experts.{name}.weight" for name in ("w1", "w2", "w3")},
}
CHOICES = list(itertools.product((False, True), (False, True), titan.ROUTERS, DTYPES, (0, 1)))


def case(grouped: bool, before: bool, router: str, dtype: str, seed: int) -> dict[str, Any]:
    settings = {"use_grouped_mm": grouped, "score_before_experts": before, **titan.router_arguments(router)}
    return {
        "kind": "moe",
        "x": random(B, T, titan.HIDDEN, dtype=DTYPES[dtype], seed=seed + 50),
        "weights": titan.weights(NAMES, DTYPES[dtype], seed),
        "bias": random(titan.EXPERTS, dtype=FP32, seed=seed + 60) / 4,
        "settings": settings,
    }


CASES = {str(choice): case(*choice) for choice in CHOICES}


@pytest.fixture(scope="module")
def live_outputs() -> Found:
    return ask("live_torchtitan_0_2", ("torchtitan-0.2.2", "triton"), CASES)


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_moe_layer(live_outputs: Found, choice: tuple[bool, bool, str, str, int]) -> None:
    """Gate in the model's dtype, fp32 scores. `score_before_experts`: x * score is rounded, rows are added by torch's
    sum; without it, C15: fp32 scores times fp32 rows in a batched GEMM, rounded once. Experts one after the other in
    the model's dtype, or in torch's grouped GEMM, always bf16.
    """
    grouped, before, router, _, _ = choice
    inputs, live = CASES[str(choice)], live_outputs[str(choice)]
    x, weights_by_port = inputs["x"], {port: inputs["weights"][name_there] for port, name_there in NAMES.items()}
    ids, weights = titan.route(F.linear(x, weights_by_port["gate"]), router, inputs["bias"])
    assert torch.equal(ids, live["ids"])
    assert_bits(weights, live["weights"])
    dtype = BF16 if grouped else x.dtype
    weights_by_port |= {port: w.to(dtype) for port, w in weights_by_port.items() if port.startswith("expert")}
    implementation, site = "grouped" if grouped else "loop", "input" if before else "combine"
    at = titan.experts_at(dtype, implementation=implementation, score_site=site, scored=x.dtype)
    rows = titan.rows_of(x, ids, weights if before else None, weights_by_port, at).to(x.dtype)
    if before:
        assert_bits(titan.combined(rows, ids, None, order="native"), live["routed"])
    else:
        # MKL contracts products and sums or does not, by the instructions that the machine has.
        sums = [titan.combined(rows, ids, weights, order=order) for order in ("sequential", "sequential(fma)")]
        assert any(same_bits(total, live["routed"]) for total in sums)
        assert not torch.equal(titan.combined(rows, ids, weights, order="sequential", weighted=BF16), live["routed"])
    assert_bits(titan.with_shared(live["routed"], x, weights_by_port), live["output"])
    titan.record_layer(router, x, at, LIVE)
    full = titan.combine_at(x.dtype, site, order="native")
    record("combine", full, LIVE, operands=x.dtype, blind=() if before else ("order",))
