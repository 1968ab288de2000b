"""The head's forms: bf16 logits, fp32 logits of bf16 operands, an fp32 head, TF32. Sums are exact in this data."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from moeparity.numerics.rounding import tf32
from moeparity.ops.kernels.linear import gate, linear, lm_head
from tests.ops.plain import BF16, FP16, FP32, assert_bits, coarse, matmul, random

WHOLE: dict[str, Any] = {"order": "native", "splits": 1, "tensor": 1, "blocks": 0}
VOCAB, HIDDEN = 37, 24


def head(x: Tensor, weight: Tensor, **at: Any) -> Tensor:
    return lm_head(x, w={"weight": weight}, p={}, at=WHOLE | at)


@pytest.mark.parametrize("tokens", [1, 7])
def test_bf16_logits_and_fp32_logits_of_the_same_exact_products(tokens: int) -> None:
    x, weight = coarse(2, tokens, HIDDEN, dtype=BF16, seed=0), coarse(VOCAB, HIDDEN, dtype=BF16, seed=1)
    rounded = head(x, weight, inputs=BF16, output=BF16)
    assert_bits(rounded, matmul(x, weight.t(), BF16))
    # torch.mm(bf16, bf16, out_dtype=fp32) of engines: exact products; the sum is torch's fp32 kernel's own here.
    wide_logits = head(x, weight, inputs=BF16, output=FP32)
    assert_bits(wide_logits, matmul(x, weight.t(), FP32))
    assert_bits(wide_logits.to(BF16), rounded)
    assert not torch.equal(wide_logits, rounded.float())


def test_an_fp32_head_keeps_bits_that_bf16_does_not() -> None:
    """Untied weights stored in fp32 are not rounded; a bf16 head rounds them first."""
    x = coarse(2, 7, HIDDEN, dtype=BF16, seed=0)
    weight = coarse(VOCAB, HIDDEN, dtype=FP32, seed=1) * (1 + 2**-9)
    fp32 = head(x, weight, inputs=FP32, tf32="no", output=FP32)
    assert_bits(fp32, matmul(x, weight.t(), FP32))
    assert_bits(head(x, weight, inputs=FP32, tf32="no", output=BF16), fp32.to(BF16))
    assert_bits(head(x, weight, inputs=BF16, output=FP32), matmul(x, weight.to(BF16).t(), FP32))


def test_upcast_operands_and_fp32_operands_are_one_kernel() -> None:
    """x.float() @ W.float().T (an upcast head) and mm with an fp32 result differ in nothing that is modelled."""
    x, weight = random(2, 7, HIDDEN, dtype=BF16), random(VOCAB, HIDDEN, dtype=BF16, seed=1)
    assert_bits(head(x, weight, inputs=FP32, tf32="no", output=FP32), head(x, weight, inputs=BF16, output=FP32))


def by_fractions(value: float) -> float:
    """11 significant bits, ties away from zero."""
    if value == 0 or not math.isfinite(value):
        return value
    mantissa, exponent = math.frexp(abs(value))
    return math.copysign(math.ldexp(math.floor(mantissa * 2**11 + 0.5), exponent - 11), value)


def test_tf32_rounds_to_nearest_with_ties_away_from_zero() -> None:
    ties = [s * (1 + (2 * i + 1) * 2.0**-11) for s in (1, -1) for i in range(5)]
    near = [math.nextafter(1 + 2.0**-11, way) for way in (0, 2)]
    special = [0.0, -0.0, math.inf, -math.inf, 3.4028234663852886e38, 1.0, -2.5]
    x = torch.cat((torch.tensor(ties + near + special, dtype=FP32), random(999, dtype=FP32)))
    expected = torch.tensor([by_fractions(value) for value in x.tolist()], dtype=torch.float64).float()
    assert_bits(tf32(x), expected)
    assert tf32(torch.tensor([math.nan])).isnan().all()
    assert not (tf32(x)[x.isfinite() & tf32(x).isfinite()].view(torch.int32) & 0x1FFF).any()


@pytest.mark.parametrize("dtype", [BF16, FP16, torch.float64])
def test_tf32_leaves_other_dtypes(dtype: torch.dtype) -> None:
    x = random(99, dtype=dtype)
    assert tf32(x) is x


@pytest.mark.parametrize("op", ["linear", "gate", "lm_head"])
@pytest.mark.parametrize("order", ["native", "sequential"])
def test_tf32_operands(op: str, order: str) -> None:
    """One term in each sum: x has one column that is not zero."""
    x, weight = torch.zeros(2, 7, HIDDEN), random(VOCAB, HIDDEN, dtype=FP32, seed=1)
    x[..., 5] = random(2, 7, dtype=FP32)
    at: dict[str, Any] = WHOLE | {"order": order, "inputs": FP32, "output": FP32, "tf32": "yes"}
    kernel = {"linear": linear, "gate": gate, "lm_head": lm_head}[op]
    p = {"heads": None, "parallel": "none"}
    a, b = (torch.tensor([by_fractions(v) for v in t.flatten().tolist()]).view_as(t) for t in (x[..., 5], weight[:, 5]))
    assert_bits(kernel(x, w={"weight": weight}, p=p, at=at), a[..., None] * b)
    assert not torch.equal(kernel(x, w={"weight": weight}, p=p, at=at | {"tf32": "no"}), a[..., None] * b)


@pytest.mark.parametrize("output", [BF16, FP32])
@pytest.mark.parametrize("order", ["native", "sequential"])
def test_the_bias_of_a_routers_gemm(order: str, output: torch.dtype) -> None:
    """Inside the GEMM, before its one rounding (gpt-oss): sums that are exact in fp32, and more bits than bf16 has."""
    x, weight = coarse(2, 7, HIDDEN, dtype=BF16, seed=0), coarse(VOCAB, HIDDEN, dtype=BF16, seed=1)
    bias = (coarse(VOCAB, dtype=FP32, seed=2) / 16 + 2.0**-7).to(BF16)
    at: dict[str, Any] = WHOLE | {"order": order, "inputs": BF16, "output": output}
    exact = (x.double() @ weight.double().t() + bias.double()).float()
    assert_bits(gate(x, w={"weight": weight, "bias": bias}, p={}, at=at), exact.to(output))
    rounded_before = matmul(x, weight.t(), BF16) + bias
    assert not torch.equal(exact.to(BF16), rounded_before)
