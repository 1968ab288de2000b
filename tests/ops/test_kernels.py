"""Every attribute value of the rope and elementwise kernels against plain torch, bit for bit.

Taken as given are torch's rsqrt, silu; every rounding is written out.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from moeparity.ops.kernels.elementwise import add, clamp, embedding, scale, sigmoid_gate, swiglu
from moeparity.ops.kernels.rope import inverse_frequencies, rope
from moeparity.ops.registry import OPS
from tests.ops.plain import DTYPES, FP32, SITES, assert_bits, plus, random, times


@pytest.mark.parametrize(("model", "products", "output"), SITES)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("partial", [False, True])
def test_rope(model: torch.dtype, products: torch.dtype, output: torch.dtype, interleaved: bool, partial: bool) -> None:
    half, width = 5, 14 if partial else 10
    q, k = random(2, 7, 3, width, dtype=model), random(2, 7, width, dtype=model, seed=1)
    angles = random(2, 7, half, dtype=FP32, seed=2)
    cos, sin = (torch.cat((f(angles), f(angles)), dim=-1).to(model) for f in (torch.cos, torch.sin))
    at = {"products": products, "output": output, "layout": "halves"}
    p = {"interleaved": interleaved, "partial": partial}
    rotated = rope(q, k, cos, sin, w={}, p=p, at=at)
    for ours, x in zip(rotated, (q, k.unsqueeze(2)), strict=True):
        expected = x.transpose(1, 2).to(output).clone()
        for i in range(half):
            a, b = (x[..., 2 * i], x[..., 2 * i + 1]) if interleaved else (x[..., i], x[..., i + half])
            c, s = cos[..., i, None], sin[..., i, None]
            first = plus(times(a, c, products), times(-b, s, products), output)
            second = plus(times(b, c, products), times(a, s, products), output)
            expected[..., i], expected[..., i + half] = first.transpose(1, 2), second.transpose(1, 2)
        assert_bits(ours, expected)


@pytest.mark.parametrize(("model", "activation", "output"), SITES)
def test_swiglu(model: torch.dtype, activation: torch.dtype, output: torch.dtype) -> None:
    gate, up = random(3, 5, 37, dtype=model) * 4, random(3, 5, 37, dtype=model, seed=1)
    ours = swiglu(gate, up, w={}, p={"halves": False}, at={"activation": activation, "output": output})
    assert_bits(ours, times(F.silu(gate.float()).to(activation), up, output))


@pytest.mark.parametrize(("model", "activation", "output"), SITES)
def test_sigmoid_gate(model: torch.dtype, activation: torch.dtype, output: torch.dtype) -> None:
    gate, x = random(3, 5, 1, dtype=model) * 4, random(3, 5, 37, dtype=model, seed=1)
    ours = sigmoid_gate(gate, x, w={}, p={}, at={"activation": activation, "output": output})
    assert_bits(ours, times(torch.sigmoid(gate.float()).to(activation), x, output))


@pytest.mark.parametrize(("model", "output"), list(itertools.product(DTYPES, DTYPES)))
def test_clamp(model: torch.dtype, output: torch.dtype) -> None:
    x, limit = random(3, 5, 37, dtype=model), 0.7
    edge = torch.tensor(limit).to(output)
    expected = [min(max(value, -edge.item()), edge.item()) for value in x.to(output).flatten().tolist()]
    ours = clamp(x, w={}, p={"limit": limit}, at={"output": output})
    assert_bits(ours, torch.tensor(expected, dtype=torch.float64).to(output).view_as(x))
    assert ours.abs().max() == edge


@pytest.mark.parametrize(("model", "output"), list(itertools.product(DTYPES, DTYPES)))
@pytest.mark.parametrize(("factor", "divisor"), [(0.22, 1.0), (12.0, 1.0), (1.0, 6.0), (1.0, 1.0)])
def test_scale(model: torch.dtype, output: torch.dtype, factor: float, divisor: float) -> None:
    """One rounding of what fp32 (fp64 where x or the output are) gives."""
    x = random(3, 5, 37, dtype=model)
    wide = torch.float64 if torch.float64 in (model, output) else FP32
    number = torch.tensor(factor if divisor == 1.0 else divisor, dtype=wide)
    expected = x.to(wide) * number if divisor == 1.0 else x.to(wide) / number
    assert_bits(scale(x, w={}, p={"factor": factor, "divisor": divisor}, at={"output": output}), expected.to(output))


def test_inverse_frequencies() -> None:
    """Against fp64 formulas, to fp32's precision: the bits are compared with transformers', in tests/hf."""
    plain = 10000.0 ** -(torch.arange(0, 16, 2).double() / 16)

    def ours(length: int, **rope: Any) -> Tensor:
        rope_fields = {"rope_theta": 10000.0, **rope}
        return inverse_frequencies(16, rope_fields, 32, FP32, torch.tensor(length))[0].double()

    def close(a: Tensor, b: Tensor) -> bool:
        return torch.allclose(a, b, rtol=1e-6, atol=0)

    assert close(ours(99, rope_type="default"), plain)
    assert close(ours(99, rope_type="linear", factor=3.0), plain / 3)
    assert close(ours(32, rope_type="dynamic", factor=2.0), plain)
    theta = 10000.0 * (2.0 * 99 / 32 - 1) ** (16 / 14)
    assert close(ours(99, rope_type="dynamic", factor=2.0), theta ** -(torch.arange(0, 16, 2).double() / 16))
    bands = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
    expected = []
    for frequency in plain.tolist():
        turns = 64 * frequency / (2 * math.pi)
        share = min(max((turns - 1.0) / 3.0, 0.0), 1.0)
        expected.append((1 - share) * frequency / 8 + share * frequency)
    assert close(ours(99, rope_type="llama3", factor=8.0, **bands), torch.tensor(expected).double())


@pytest.mark.parametrize(("left", "right", "output"), SITES)
def test_add(left: torch.dtype, right: torch.dtype, output: torch.dtype) -> None:
    a, b = random(3, 5, 37, dtype=left), random(3, 5, 37, dtype=right, seed=1)
    assert_bits(add(a, b, w={}, p={}, at={"output": output}), plus(a, b, output))


@pytest.mark.parametrize(("model", "output"), list(itertools.product(DTYPES, DTYPES)))
def test_embedding(model: torch.dtype, output: torch.dtype) -> None:
    table, tokens = random(11, 7, dtype=model), torch.tensor([[3, 0, 10], [3, 3, 1]])
    expected = torch.stack([torch.stack([table[i] for i in row]) for row in tokens.tolist()]).to(output)
    assert_bits(embedding(tokens, w={"weight": table}, p={}, at={"output": output}), expected)


@pytest.mark.parametrize("name", OPS)
def test_what_an_op_is_told_has_one_meaning_for_each_name(name: str) -> None:
    """Shapes of weights, whole-number parameters and inputs come to `refuses` in one mapping."""
    op = OPS[name]
    names = [port.name for port in op.weights] + [parameter.name for parameter in op.parameters] + [*op.inputs]
    assert len(names) == len(set(names))
