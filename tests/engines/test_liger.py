"""Our kernels, as their attributes state Liger 0.8.5's, against these in Triton's interpreter on CPU, bit for bit.

The interpreter has no bf16 (it casts by cutting off, and multiplies raw bits): fp16 is the 16-bit dtype here, and
Liger's kernels take their dtype from x. A sum is numpy's there, in an order of its own, so the sums here are exact in
any order where nothing else is said: what is compared are the places where values are rounded.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from moeparity.ops.kernels.combine import combine
from moeparity.ops.kernels.elementwise import add, swiglu
from moeparity.ops.kernels.experts import experts
from moeparity.ops.kernels.norm import rms_norm
from moeparity.ops.kernels.rope import rope, rotary
from tests.engines.live import Found, ask
from tests.ops.plain import FP16, FP32, assert_bits, coarse, random
from tests.verified import record as record_run

pytestmark = pytest.mark.live
LIVE = "Liger 0.8.5 in Triton 3.7.1's interpreter"
record = partial(record_run, how="triton_interpreter")

DTYPES, WIDTHS, EPS = {"fp16": FP16, "fp32": FP32}, (37, 200), 1e-6
MODES = (("llama", 0.0), ("llama", 1.0), ("gemma", 0.0), ("gemma", 1.0), ("none", 0.0), ("none", 1.0))
TOKENS, EXPERTS, TOP_K, HIDDEN, WIDE = 19, 6, 5, 40, 24


def norm_case(dtype: str, width: int, mode: str, offset: float) -> dict[str, Any]:
    x, weight = coarse(5, width, dtype=DTYPES[dtype], seed=width), random(width, dtype=DTYPES[dtype], seed=1)
    return {"kind": "norm", "x": x, "weight": weight, "eps": EPS, "offset": offset, "mode": mode}


def add_norm_case(dtype: str, width: int, mode: str) -> dict[str, Any]:
    """In fp16 the residual is below half a unit of x, which is what their rounded sum is; in fp32 no sum is rounded."""
    generator = torch.Generator().manual_seed(width)
    sign, quarters, few = (torch.randint(0, n, (5, width), generator=generator) for n in (2, 4, 7))
    x, residual = (2 * sign - 1) * (1 + quarters / 4), (few - 3) * (2.0**-14 if dtype == "fp16" else 0.25)
    weight = random(width, dtype=DTYPES[dtype], seed=1)
    terms = {"x": x.to(DTYPES[dtype]), "residual": residual.to(DTYPES[dtype])}
    return {"kind": "add_norm", **terms, "weight": weight, "eps": EPS, "mode": mode}


def clear_of_ties(exact: Tensor) -> Tensor:
    """Where a few units in the last place of fp32 do not decide how an fp64 value is rounded to fp16."""
    return (exact * (1 - 2.0**-20)).half() == (exact * (1 + 2.0**-20)).half()


def swiglu_case(width: int, seed: int) -> dict[str, Any]:
    """silu is x * sigmoid(x) with numpy's exp there and x / (1 + exp(-x)) in torch, equal but for the last place."""
    gate, up = random(5, width, dtype=FP16, seed=seed) * 3, random(5, width, dtype=FP16, seed=seed + 1)
    silu = gate.double() / (1 + (-gate.double()).exp())
    return {"kind": "swiglu", "gate": torch.where(clear_of_ties(silu), gate, 0), "up": up}


def rope_case(dtype: str, table: str, seed: int) -> dict[str, Any]:
    """20 columns of each head, 6 heads of queries and 2 of keys."""
    q, k = (random(2, 7, heads, 20, dtype=DTYPES[dtype], seed=seed + heads) for heads in (6, 2))
    positions = torch.arange(7).expand(2, -1)
    p = {"dim": 20, "rope": {"rope_type": "default", "rope_theta": 1e4}, "max_positions": 7}
    cos, sin = rotary(positions, w={}, p=p, at={"output": DTYPES[table]})
    return {"kind": "rope", "q": q, "k": k, "cos": cos, "sin": sin}


def combine_case(dtype: str, k: int) -> dict[str, Any]:
    rows, weights = random(7, k, 200, dtype=DTYPES[dtype], seed=k), random(7, k, dtype=FP32, seed=9)
    return {"kind": "combine", "rows": rows, "weights": weights.sigmoid()}


def two_terms(*shape: int, seed: int) -> Tensor:
    """1 and 2^-9 in each row: dot products with fp16 numbers are exact in fp32, and not in fp16."""
    generator = torch.Generator().manual_seed(seed)
    at = torch.stack([torch.randperm(shape[-1], generator=generator)[:2] for _ in range(shape[0] * shape[1])])
    values = torch.tensor([1.0, 2.0**-9]).expand(*shape[:2], 2)
    return torch.zeros(shape).scatter(-1, at.view(*shape[:2], 2), values).to(FP16)


def moe_case(seed: int) -> dict[str, Any]:
    """Gates above 18, whose silu is the gate itself; weights of the combine that are multiples of 1/64."""
    generator = torch.Generator().manual_seed(seed)
    x = (torch.randint(18 * 32, 40 * 32, (TOKENS, HIDDEN), generator=generator) / 32).to(FP16)
    down = torch.zeros(EXPERTS, HIDDEN, WIDE)
    at = torch.randint(0, WIDE, (EXPERTS, HIDDEN, 1), generator=generator)
    sign = torch.randint(0, 2, at.shape, generator=generator) * 2 - 1
    ids = torch.rand(TOKENS, EXPERTS, generator=generator).argsort(-1)[:, :TOP_K].contiguous()
    return {
        "kind": "moe",
        "x": x,
        "gate_up": two_terms(EXPERTS, 2 * WIDE, HIDDEN, seed=seed),
        "down": down.scatter(-1, at, sign / 64).to(FP16),
        "ids": ids,
        "weights": torch.randint(1, 64, ids.shape, generator=generator) / 64,
    }


NORMS = [(dtype, width, *mode) for dtype in DTYPES for width in WIDTHS for mode in MODES]
NORMS = [case for case in NORMS if case[0] == "fp32" or case[2] != "none"]
ADDED = [(dtype, width, mode) for dtype in DTYPES for width in WIDTHS for mode in ("llama", "gemma")]
SILU = [(width, seed) for width in WIDTHS for seed in (0, 5)]
ROPES = [(*dtypes, seed) for dtypes in (("fp16", "fp16"), ("fp32", "fp32"), ("fp16", "fp32")) for seed in (0, 1)]
SUMS = [(dtype, k) for dtype in DTYPES for k in (1, 2, 5, 8)]
CASES: dict[str, dict[str, Any]] = {
    f"{make.__name__} {values}": make(*values)
    for make, all_values in (
        (norm_case, NORMS),
        (add_norm_case, ADDED),
        (swiglu_case, SILU),
        (rope_case, ROPES),
        (combine_case, SUMS),
        (moe_case, [(0,), (1,)]),
    )
    for values in all_values
}


@pytest.fixture(scope="module")
def live_outputs() -> Found:
    return ask("live_liger", ("liger", "triton"), CASES)


def norm_at(dtype: torch.dtype, **at: Any) -> dict[str, Any]:
    sites = {"square": FP32, "scaled": FP32, "weight": FP32, "normalized": FP32, "output": dtype}
    native = {"statistic": "mean_square", "order": "native", "mean": "divide", "rsqrt": "sqrt_div", "eps": "config"}
    return {**sites, **native, "association": "x_rstd_first", "offset": 0.0, **at}


def normed(x: Tensor, weight: Tensor, **at: Any) -> Tensor:
    return rms_norm(x, w={"weight": weight}, p={"eps": EPS, "heads": None}, at=norm_at(x.dtype, **at))


@pytest.mark.parametrize("values", NORMS, ids=str)
def test_rms_norm(live_outputs: Found, values: tuple[str, int, str, float]) -> None:
    """llama: x * rstd is rounded, then meets offset + weight, an fp32 sum; gemma and none: one rounding. In 16 bits
    `none` takes its statistic in 16 bits too, which we have no form for.
    """
    case, mode = CASES[f"norm_case {values}"], values[2]
    x, weight, output = case["x"], case["weight"], live_outputs[f"norm_case {values}"]["output"]
    normalized = x.dtype if mode == "llama" else FP32
    assert_bits(normed(x, weight, normalized=normalized, offset=case["offset"]), output)
    at = norm_at(x.dtype, normalized=normalized, offset=case["offset"])
    record("rms_norm", at, LIVE, operands=x.dtype, blind=("order", "rsqrt"))
    if x.dtype == FP16:
        wrong_dtype = FP32 if mode == "llama" else FP16
        assert not torch.equal(normed(x, weight, normalized=wrong_dtype, offset=case["offset"]), output)


@pytest.mark.parametrize("values", ADDED, ids=str)
def test_fused_add_and_norm(live_outputs: Found, values: tuple[str, int, str]) -> None:
    """The sum is rounded, and what is normalised is the rounded one."""
    case, live = CASES[f"add_norm_case {values}"], live_outputs[f"add_norm_case {values}"]
    total = add(case["x"], case["residual"], w={}, p={}, at={"output": case["x"].dtype})
    assert_bits(total, live["sum"])
    normalized = total.dtype if values[2] == "llama" else FP32
    assert_bits(normed(total, case["weight"], normalized=normalized), live["output"])
    record("add", {"output": total.dtype}, LIVE, operands=total.dtype)
    if total.dtype == FP16:
        unrounded = add(case["x"], case["residual"], w={}, p={}, at={"output": FP32})
        unrounded_once = normed(unrounded, case["weight"], normalized=normalized, output=FP16)
        assert not torch.equal(unrounded_once, live["output"])


@pytest.mark.parametrize("values", SILU, ids=str)
def test_swiglu(live_outputs: Found, values: tuple[int, int]) -> None:
    """silu(gate) is rounded before it meets up, as in transformers: two roundings."""
    case, live = CASES[f"swiglu_case {values}"], live_outputs[f"swiglu_case {values}"]["output"]
    at: dict[str, Any] = {"output": FP16, "tensor": 1, "blocks": 0}
    two, rounded_once = (
        swiglu(case["gate"], case["up"], w={}, p={}, at=at | {"activation": site}) for site in (FP16, FP32)
    )
    assert_bits(two, live)
    record("swiglu", at | {"activation": FP16}, LIVE, operands=FP16)
    assert not torch.equal(rounded_once, live)


@pytest.mark.parametrize("values", ROPES, ids=str)
def test_rope(live_outputs: Found, values: tuple[str, str, int]) -> None:
    """Products in the dtype of cos and sin, not contracted (on a GPU a compiler may), and the sum in it; then q's."""
    case, live = CASES[f"rope_case {values}"], live_outputs[f"rope_case {values}"]
    at: dict[str, Any] = {"contraction": "none", "output": case["q"].dtype, "layout": "halves"}
    tensors = [case[name] for name in ("q", "k", "cos", "sin")]

    def turned(products: torch.dtype) -> tuple[Tensor, Tensor]:
        return rope(*tensors, w={}, p={"interleaved": False, "partial": False}, at=at | {"products": products})

    for ours, name in zip(turned(case["cos"].dtype), ("q", "k"), strict=True):
        assert_bits(ours, live[name])
    at |= {"products": case["cos"].dtype}
    record("rope", at, LIVE, operands=case["q"].dtype, blind=("contraction", "layout"))
    if case["q"].dtype == FP16:
        wrong_dtype = FP32 if case["cos"].dtype == FP16 else FP16
        assert not torch.equal(turned(wrong_dtype)[0], live["q"])


def summed_at(dtype: torch.dtype, **at: Any) -> dict[str, Any]:
    base = {"weighted": FP32, "accumulate": FP32, "leaves": "slot", "order": "sequential", "output": dtype}
    return {**base, "expert": 1, "scaling": "weights", "score_site": "combine", "partial": dtype, **at}


def summed(rows: Tensor, weights: Tensor, **at: Any) -> Tensor:
    at = summed_at(rows.dtype, **at)
    p = {"experts": EXPERTS, "top_k": rows.shape[-2], "scale": 1.0}
    rows, weights = (x if x.dim() == dims else x.unsqueeze(0) for x, dims in ((rows, 4), (weights, 3)))
    return combine(rows, None, weights, w={}, p=p, at=at).squeeze(0)


@pytest.mark.parametrize("values", SUMS, ids=str)
def test_combine(live_outputs: Found, values: tuple[str, int]) -> None:
    """F2: fp32 products and sum, rounded once. The kernel adds up tiles of slots (4 of them without Liger's autotuner),
    then the tiles in turn; inside a tile numpy adds in turn and contracts nothing, a GPU as its threads hold the slots.
    """
    case, live = CASES[f"combine_case {values}"], live_outputs[f"combine_case {values}"]["output"]
    order = "blocks(4) | sequential"
    assert_bits(summed(case["rows"], case["weights"], order=order), live)
    dtype = case["rows"].dtype
    record("combine", summed_at(dtype), LIVE, operands=dtype, blind=("order",))
    if values[0] == "fp16" and values[1] > 1:
        assert not torch.equal(summed(case["rows"], case["weights"], order=order, weighted=FP16), live)
    if values == ("fp32", 8):
        assert not torch.equal(summed(case["rows"], case["weights"]), live)


@pytest.mark.parametrize("seed", [0, 1])
def test_experts_and_combine(live_outputs: Found, seed: int) -> None:
    """LigerExperts: gate and up stay in fp32 from the GEMM into the activation, which is rounded once; rows are
    rounded, then F2. Our `projections` in fp32 says so where x and the weights are in 16 bits.
    """
    case, live = CASES[f"moe_case ({seed},)"], live_outputs[f"moe_case ({seed},)"]["output"]
    at: dict[str, Any] = {"implementation": "loop", "gate_up": "fused", "score_site": "combine", "activation": FP32}
    at |= {"product": FP16, "output": FP16, "tensor": 1, "blocks": 0, "parallel": "row", "tf32": "no"}
    w = {"gate_up": case["gate_up"], "down": case["down"]}

    def computed(projections: torch.dtype) -> Tensor:
        operands = case["x"].unsqueeze(0), case["ids"].unsqueeze(0), None
        rows = experts(*operands, w=w, p={}, at=at | {"projections": projections})
        return summed(rows, case["weights"].unsqueeze(0))

    assert_bits(computed(FP32), live)
    exact = ("implementation", "gate_up", "tf32", "order", "splits")
    record("experts", at | {"projections": FP32}, LIVE, operands=FP16, blind=exact)
    assert not torch.equal(computed(FP16), live)
