"""Raw bits of floating-point tensors: equality is decided here, never with `torch.equal` on floats."""

from __future__ import annotations

import torch

_INT_OF = {
    torch.bfloat16: torch.int16,
    torch.float16: torch.int16,
    torch.float32: torch.int32,
    torch.float64: torch.int64,
}


def int_view(x: torch.Tensor) -> torch.Tensor:
    """The same storage read as signed integers of equal width.

    bf16 and fp16 give int16, fp32 int32, fp64 int64; integer and bool tensors come back unchanged.
    Shape and strides are kept.
    """
    dtype = _INT_OF.get(x.dtype)
    return x if dtype is None else x.view(dtype)


def ulps(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """How far apart the numbers of two tensors of one float dtype are, in units of the last place; 0 for a NaN."""
    distance = (_ordered(a) - _ordered(b)).abs()
    return distance.masked_fill(a.isnan() | b.isnan(), 0)


def _ordered(x: torch.Tensor) -> torch.Tensor:
    """Whole numbers as far apart as the floats are; -0 and +0 are one."""
    bits = int_view(x).long()
    return torch.where(bits < 0, -(bits & (2 ** (8 * x.element_size() - 1) - 1)), bits)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """True when shape, dtype and every bit agree: -0 differs from +0, a NaN equals only the same NaN."""
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(int_view(a), int_view(b))
