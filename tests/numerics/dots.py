"""Data on which a sum shows its order, and dot products in some orders, each operation on Python numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from tests.numerics import scalar
from tests.numerics.scalar import FP16, FP32

Row = Sequence[float]
Dot = Callable[[Row, Row], float]


def operands(m: int, n: int, k: int, dtype: torch.dtype, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """x [m, k] and weight [n, k] whose products come in pairs p, -p of widely spread exponents, shuffled over k."""
    generator = torch.Generator().manual_seed(seed)
    spread = 3 if dtype == FP16 else 12

    def draw(rows: int) -> torch.Tensor:
        exponents = torch.randint(-spread, spread + 1, (rows, k), generator=generator)
        return torch.ldexp(torch.rand(rows, k, generator=generator) - 0.5, exponents).to(dtype)

    x, weight, half = draw(m), draw(n), k // 2
    x[:, half : 2 * half], weight[:, half : 2 * half] = -x[:, :half], weight[:, :half]
    shuffled = torch.randperm(k, generator=generator)
    return x[:, shuffled], weight[:, shuffled]


def plus(a: float, b: float) -> float:
    return scalar.add(a, b, FP32)


def products(a: Row, b: Row) -> list[float]:
    return [scalar.multiply(x, y, FP32) for x, y in zip(a, b, strict=True)]


def chain(values: Row) -> float:
    total = values[0]
    for value in values[1:]:
        total = plus(total, value)
    return total


def sequential(a: Row, b: Row) -> float:
    return chain(products(a, b))


def reverse(a: Row, b: Row) -> float:
    return chain(products(a, b)[::-1])


def contracted(a: Row, b: Row) -> float:
    total = scalar.multiply(a[0], b[0], FP32)
    for x, y in zip(a[1:], b[1:], strict=True):
        total = scalar.fma(x, y, total, FP32)
    return total


def contracted_from_zero(a: Row, b: Row) -> float:
    total = 0.0
    for x, y in zip(a, b, strict=True):
        total = scalar.fma(x, y, total, FP32)
    return total


def tiles(a: Row, b: Row) -> float:
    values = products(a, b)
    return chain([chain(values[i : i + 4]) for i in range(0, len(values), 4)])


def tiles_contracted(a: Row, b: Row) -> float:
    return chain([contracted(a[i : i + 4], b[i : i + 4]) for i in range(0, len(a), 4)])


def lanes(a: Row, b: Row) -> float:
    values = products(a, b)
    return folded([chain(values[i::4]) for i in range(min(4, len(values)))], FP32)


def fold(a: Row, b: Row) -> float:
    return folded(products(a, b), FP32)


def folded(values: Row, dtype: torch.dtype) -> float:
    """First half plus second half, padded with +0."""
    row = [*values, *[0.0] * ((1 << (len(values) - 1).bit_length()) - len(values))]
    while len(row) > 1:
        half = len(row) // 2
        row = [scalar.add(row[i], row[i + half], dtype) for i in range(half)]
    return row[0]


def fused(a: Row, b: Row) -> float:
    values = products(a, b)
    total = scalar.total(values[:5], FP32)
    for i in range(5, len(values), 5):
        total = scalar.total([total, *values[i : i + 5]], FP32)
    return total


BY_HAND: dict[str, Dot] = {
    "sequential": sequential,
    "reverse": reverse,
    "sequential(fma)": contracted,
    "sequential(fma, zero)": contracted_from_zero,
    "blocks(4) | sequential": tiles,
    "blocks(4, fma) | sequential": tiles_contracted,
    "lanes(4) | fold_hi": lanes,
    "fold_hi": fold,
    "fused(5)": fused,
}


def every(dot: Dot, x: torch.Tensor, weight: torch.Tensor) -> list[float]:
    """Each row of x with each row of weight."""
    return [dot(a, b) for a in x.tolist() for b in weight.tolist()]


def combined(values: Row, order: str, dtype: torch.dtype) -> float:
    """Values of a dtype added in it."""
    if order == "fold_hi":
        return folded(values, dtype)
    values, width = values[:: -1 if order == "reverse" else 1], 2 if order == "fused(2)" else 1
    total = scalar.total(list(values[:width]), dtype) if width > 1 else values[0]
    for i in range(width, len(values), width):
        total = scalar.total([total, *values[i : i + width]], dtype)
    return total
