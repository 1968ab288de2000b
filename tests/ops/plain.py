"""What the kernel tests share: raw bits, random values, and products and sums with every rounding written out.

A product or sum of two fp32 numbers is formed in fp64; rounding that to fp32 is the same as rounding the exact one.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
DTYPES = [BF16, FP16, FP32]
SITES = list(itertools.product(DTYPES, DTYPES, DTYPES))


def bits(x: Tensor) -> Tensor:
    return x.contiguous().view({2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()])


def assert_bits(ours: Tensor, expected: Tensor) -> None:
    assert (ours.dtype, ours.shape) == (expected.dtype, expected.shape)
    assert torch.equal(bits(ours), bits(expected))


def random(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def times(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    return (a.double() * b.double()).float().to(dtype)


def plus(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    return (a.double() + b.double()).float().to(dtype)


def coarse(*shape: int, dtype: torch.dtype, seed: int) -> Tensor:
    """Small multiples of 1/4: sums of their products are exact in fp32, in whichever order."""
    return (torch.randint(-9, 10, shape, generator=torch.Generator().manual_seed(seed)) / 4).to(dtype)


def one_per_column(rows: int, columns: int, seed: int) -> Tensor:
    """A single power of two in every column: the sum over the rows is exact whatever it is multiplied with."""
    generator = torch.Generator().manual_seed(seed)
    at = torch.randint(0, rows, (1, columns), generator=generator)
    return torch.zeros(rows, columns).scatter(0, at, 2.0 ** torch.randint(-3, 4, (1, columns), generator=generator))


def matmul(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    exact = a.double() @ b.double()
    assert torch.equal(exact, exact.float().double())
    return exact.float().to(dtype)
