"""Steps that go through a GEMM together have the bits that each has by itself, or they do not go together."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from moeparity.numerics.bits import same_bits
from moeparity.numerics.joined_steps import BLOCKS, Apply, JoinedGemm, StepRows, Steps, call
from moeparity.numerics.rounding import product

SIZES = (25, 1, 2, 3, 7, 25, 25, 12, 40, 1, 25, 300)
"""Rows of steps; the last are more than any block has."""


def drawn(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    start = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=start) * torch.exp2(torch.randint(-6, 7, shape, generator=start))).to(dtype)


@dataclass
class Called:
    """A kernel that remembers how many rows it was called on."""

    kernel: Callable[[Tensor, Tensor, Tensor | None], Tensor]
    rows: list[int] = field(default_factory=list)

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        self.rows.append(len(x))
        return self.kernel(x, weight, bias)


def joined(kernel: Called, weight: Tensor, bias: Tensor | None = None) -> JoinedGemm:
    # A key of its own: what was tried of another kernel says nothing of this one.
    return JoinedGemm(alone=kernel, blocks=kernel, weight=weight, bias=bias, key=object())


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("inputs", "outputs"), [(96, 96), (96, 24), (64, 10), (2048, 64)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_as_if_step_after_step(dtype: torch.dtype, inputs: int, outputs: int, biased: bool) -> None:
    weight = drawn(outputs, inputs, dtype=dtype, seed=1)
    bias = drawn(outputs, dtype=dtype, seed=2) if biased else None
    x = drawn(sum(SIZES), inputs, dtype=dtype)
    truth = torch.cat([F.linear(part.clone(), weight, bias) for part in torch.split(x, list(SIZES))])
    assert same_bits(joined(Called(F.linear), weight, bias).in_steps(x, SIZES), truth)


def halves(x: Tensor, weight: Tensor, _: Tensor | None) -> Tensor:
    """Below 7 rows another order than from 7 rows on."""
    k = x.shape[1] // 2 if len(x) < 7 else 1
    whole = (x[:, None, :].float() * weight.float()).unbind(-1)
    total = torch.zeros(len(x), len(weight))
    for leaf in (*whole[k:], *whole[:k]):
        total = total + leaf
    return total.to(x.dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_another_order_below_some_number_of_rows_is_seen(dtype: torch.dtype) -> None:
    weight, x = drawn(5, 64, dtype=dtype, seed=1), drawn(40, 64, dtype=dtype)
    kernel, sizes = Called(halves), (6, 6, 8, 20)
    ours = joined(kernel, weight).in_steps(x, sizes)
    assert same_bits(ours, torch.cat([halves(part, weight, None) for part in torch.split(x, list(sizes))]))
    computed = kernel.rows[-3:]
    assert sorted(computed) == [6, 6, BLOCKS[0]], "those of 6 rows alone, the others in one block"


def by_place(x: Tensor, weight: Tensor, _: Tensor | None) -> Tensor:
    """Every third row of many is added otherwise."""
    out = halves(x, weight, None)
    if len(x) > 8:
        out[::3] = torch.cat([halves(row[None], weight, None) for row in x[::3]])
    return out


def test_a_kernel_that_knows_places_is_called_step_by_step() -> None:
    weight, x, sizes = drawn(5, 64, dtype=torch.float32, seed=1), drawn(32, 64, dtype=torch.float32), (8, 8, 16)
    kernel = Called(by_place)
    ours = joined(kernel, weight).in_steps(x, sizes)
    assert same_bits(ours, torch.cat([by_place(part, weight, None) for part in torch.split(x, list(sizes))]))
    assert kernel.rows[-3:] == list(sizes)


def test_where_nothing_shows_nothing_is_joined() -> None:
    weight, x = drawn(5, 64, dtype=torch.float32), drawn(16, 64, dtype=torch.float32)
    kernel = Called(lambda x, weight, _: torch.zeros(len(x), len(weight)))
    joined(kernel, weight).in_steps(x, (8, 8))
    assert kernel.rows[-2:] == [8, 8]


def test_rows_of_steps_in_any_order() -> None:
    steps = Steps(places=torch.tensor([4, 0, 2, 1, 3]), sizes=(2, 3))
    assert steps.numbers.tolist() == [0, 0, 1, 1, 1]
    x = torch.arange(5)
    assert x[steps.places][steps.back].tolist() == x.tolist()


def silu(apply: Apply, gate: Tensor, up: Tensor) -> Tensor:
    # Of a product, which lies otherwise than its operands: not only what comes first may show its place.
    return product(apply(F.silu, gate * 0.7), up, gate.dtype)


def chunks(x: Tensor) -> tuple[Tensor, ...]:
    return x.chunk(2, dim=-1)


ORDERS = (None, torch.randperm(60, generator=torch.Generator().manual_seed(3)))


@pytest.mark.parametrize("nan", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("order", ORDERS)
def test_elements_as_if_step_after_step(order: Tensor | None, dtype: torch.dtype, nan: bool) -> None:
    gate_up, sizes = drawn(60, 2 * 37, dtype=dtype), (1, 2, 57)
    gate_up[7, 3] = math.nan if nan else 1
    truth = torch.empty(60, 37, dtype=dtype)
    rows = torch.arange(60) if order is None else order
    for rows_there in torch.split(rows, list(sizes)):
        truth[rows_there] = silu(call, *chunks(gate_up[rows_there]))
    assert same_bits(StepRows(sizes, order).each(silu, chunks, gate_up), truth)


def test_elements_whose_vector_differs_are_computed_step_by_step() -> None:
    """As torch's own sometimes in fp32, but at every element."""
    shapes: list[tuple[int, ...]] = []

    def planted(x: Tensor) -> Tensor:
        shapes.append(tuple(x.shape))
        return x + 1 if x.is_contiguous() else x + 2

    x = drawn(9, 4, dtype=torch.float32)
    assert same_bits(StepRows((4, 5)).each(lambda apply, x: apply(planted, x), lambda x: (x,), x), x + 1)
    assert shapes[-2:] == [(4, 4), (5, 4)]
