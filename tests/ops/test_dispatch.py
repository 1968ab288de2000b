"""Rows that travel to their experts in 8 bits, as DeepEP's low-latency kernel rounds them."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor

from moeparity.numerics.bits import same_bits
from moeparity.numerics.block_scales import Grid
from moeparity.numerics.quantised import quantised, scaled_product
from moeparity.ops.kernels.experts import experts
from moeparity.ops.kernels.quantised import dispatched
from tests.engines.cuda.compared import plan_values
from tests.numerics.scalar import multiply, nearest
from tests.ops.test_kv_cache import code_of

FP8, FP32, BF16 = torch.float8_e4m3fn, torch.float32, torch.bfloat16
ARRIVES: dict[str, Any] = {
    "dispatch": FP8, "dispatch_group": 16, "dispatch_scale": "fp32", "dispatch_floor": 1e-4, "projections": BF16,
}  # fmt: skip


def rows() -> Tensor:
    """bf16 [6, 48]: of many sizes, with a row of zeros, one below the floor, one with an infinity."""
    g = torch.Generator().manual_seed(2)
    x = torch.randn(6, 48, generator=g) * 2.0 ** torch.randint(-14, 6, (6, 48), generator=g)
    x[0], x[1] = 0.0, 1e-6
    x[2, :16] = torch.arange(16) / 16
    return x.bfloat16()


def by_scalars(x: Tensor, scale: str, floor: float) -> tuple[list[list[int]], list[list[float]]]:
    """Codes, as bits, and scales of utils.cuh calculate_fp8_scales and internode_ll.cu, one number after another."""
    codes: list[list[int]] = []
    scales: list[list[float]] = []
    for row in x.float().tolist():
        codes.append([])
        scales.append([])
        for start in range(0, len(row), 16):
            group = row[start : start + 16]
            amax = max(nearest(Fraction(floor), FP32), *(abs(value) for value in group))
            inverse = multiply(amax, nearest(Fraction(1, 448), FP32), FP32)
            factor = nearest(Fraction(448) / Fraction(amax), FP32)
            if scale == "ue8m0":
                mantissa, exponent = math.frexp(inverse)
                inverse = 2.0 ** (exponent - (mantissa == 0.5))
                factor = 1 / inverse
            scales[-1].append(inverse)
            codes[-1] += [code_of(multiply(value, factor, FP32), "fp8_e4m3", saturates=True) for value in group]
    return codes, scales


@pytest.mark.parametrize("scale", ["fp32", "ue8m0"])
@pytest.mark.parametrize("floor", [1e-4, 1e-10])
def test_rows_that_are_multiplied_out_are_codes_times_scales_of_deepep(scale: str, floor: float) -> None:
    at = {**ARRIVES, "dispatch_scale": scale, "dispatch_floor": floor, "activations": "unrounded"}
    arrived, of_gemm = dispatched(rows(), at)
    codes, scales = by_scalars(rows(), scale, floor)
    numbers = torch.tensor(codes, dtype=torch.uint8).view(FP8).float()
    expected = numbers * torch.tensor(scales).repeat_interleave(16, 1)
    assert same_bits(arrived, expected.bfloat16())
    assert of_gemm == at


def test_an_infinity_and_a_nan_stay_in_their_group() -> None:
    x = rows()
    x[3, 20], x[4, 40] = math.inf, math.nan
    arrived, _ = dispatched(x, {**ARRIVES, "activations": "unrounded"})
    assert arrived.isnan().any(1).tolist() == [False, False, False, True, True, False]
    assert not arrived[3, :16].isnan().any()
    assert not arrived[4, :32].isnan().any()


def test_nothing_changes_where_rows_travel_as_they_are() -> None:
    x, at = rows(), {"dispatch": "unrounded", "activations": "unrounded"}
    arrived, of_gemm = dispatched(x, at)
    assert arrived is x
    assert of_gemm is at


def values(**changes: Any) -> dict[str, Any]:
    """The experts' choices in vllm-fp8-blocks, in blocks of 16 and with scales in fp32."""
    sets: dict[str, Any] = {
        "weight_block": 16, "activation_group": 16, "weight_scale_by": "divided", "weight_floor": 1e-10,
        "activation_scale": "fp32", "activation_floor": 1e-10, "scaling": "both", "order": "native",
    }  # fmt: skip
    return {**plan_values("vllm-fp8-blocks", "qwen3_moe", "experts"), **sets, **changes}


def weights() -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(4)
    shapes = {"gate_up": (3, 64, 48), "down": (3, 48, 32)}
    return {name: (torch.randn(shape, generator=g) / 8).bfloat16() for name, shape in shapes.items()}


def test_codes_are_multiplied_as_they_come_and_the_down_projections_are_the_experts_own() -> None:
    """One expert for each row: gate and up of DeepEP's codes and scales, down of codes that `activations` says."""
    x, w, ids = rows()[None], weights(), torch.tensor([0, 1, 2, 0, 1, 2]).view(1, 6, 1)
    at = values(**ARRIVES, activation_quotient="divided")
    ours = experts(x, ids, None, w=w, p={"glu": "swiglu"}, at=at)
    plain: dict[str, Any] = {"dtype": FP8, "scale": "fp32"}
    of_weights = Grid(**plain, block=(16, 16), scale_by="divided", quotient="reciprocal", floor=1e-10)
    arrived = Grid(**plain, block=(1, 16), scale_by="reciprocal", quotient="from_largest", floor=1e-4)
    of_experts = Grid(**plain, block=(1, 16), scale_by="divided", quotient="divided", floor=1e-10)

    def multiply_codes(a: Tensor, b: Tensor) -> Tensor:
        return torch.nn.functional.linear(a.float(), b.float())

    def gemm(a: Tensor, weight: Tensor, grid: Grid) -> Tensor:
        return scaled_product(
            quantised(a, grid), quantised(weight, of_weights), None, multiply_codes, part=16, scaling="both",
            addition="fma", output=BF16,
        )  # fmt: skip

    for expert in range(3):
        chosen = [place for place in range(6) if place % 3 == expert]
        gate, up = gemm(x[0, chosen], w["gate_up"][expert], arrived).chunk(2, -1)
        hidden = torch.nn.functional.silu(gate) * up
        assert same_bits(ours[0, chosen, 0], gemm(hidden, w["down"][expert], of_experts))
    undispatched = experts(x, ids, None, w=w, p={"glu": "swiglu"}, at=values(activation_quotient="divided"))
    assert not same_bits(ours, undispatched)


@pytest.mark.parametrize("changes", [{"activation_group": 8}, {"activation_scales": "token"}], ids=str)
def test_codes_of_other_groups_are_multiplied_out_and_rounded_anew(changes: dict[str, Any]) -> None:
    x, w, ids = rows()[None], weights(), torch.zeros(1, 6, 1, dtype=torch.int64)
    at = values(**ARRIVES, **changes)
    arrived, of_gemm = dispatched(x[0], at)
    assert of_gemm == at
    ours = experts(x, ids, None, w=w, p={"glu": "swiglu"}, at=at)
    assert same_bits(ours, experts(arrived[None], ids, None, w=w, p={"glu": "swiglu"}, at=values(**changes)))


def test_the_last_group_is_cut_short_as_by_zeros_that_are_padded() -> None:
    """vLLM pads rows to a width that DeepEP's kernel is compiled for."""
    x, at = rows()[:, :41], {**ARRIVES, "activations": "unrounded"}
    padded = torch.nn.functional.pad(x, (0, 7))
    assert same_bits(dispatched(x, at)[0], dispatched(padded, at)[0][:, :41])
