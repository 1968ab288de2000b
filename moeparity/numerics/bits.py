"""Raw bits of floating-point tensors. Equality is decided here, never by `torch.equal` on floats."""

from __future__ import annotations

import torch

_INT_OF = {
    torch.bfloat16: torch.int16,
    torch.float16: torch.int16,
    torch.float32: torch.int32,
    torch.float64: torch.int64,
    torch.float8_e4m3fn: torch.int8,
    torch.float8_e5m2: torch.int8,
}


def int_view(x: torch.Tensor) -> torch.Tensor:
    """The same storage read as signed integers of the same width: fp8 as int8, bf16 and fp16 as int16, fp32 as int32,
    fp64 as int64.

    Integer and bool tensors come back unchanged. Shape and strides are kept.
    """
    dtype = _INT_OF.get(x.dtype)
    return x if dtype is None else x.view(dtype)


def ulps(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The distance of two tensors of one float dtype in units of the last place, elementwise; 0 if one is NaN."""
    distance = (_ordered(a) - _ordered(b)).abs()
    return distance.masked_fill(a.isnan() | b.isnan(), 0)


def _ordered(x: torch.Tensor) -> torch.Tensor:
    """Integers whose distances are those of the floats in ulps; -0 and +0 give the same integer."""
    bits = int_view(x).long()
    return torch.where(bits < 0, -(bits & (2 ** (8 * x.element_size() - 1) - 1)), bits)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether shape, dtype and every bit are equal: -0 differs from +0, a NaN equals only the same NaN."""
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(int_view(a), int_view(b))
