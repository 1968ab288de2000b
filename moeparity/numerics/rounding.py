"""Products, GEMMs and single additions with every rounding stated.

Each elementwise function computes in fp32 (in fp64 if an operand or the result is fp64), then rounds to the result's
dtype. With two bf16 or two fp16 operands the fp32 step has no effect (24 bits are at least 2p+2, so rounding twice
equals rounding once); torch's own 16-bit elementwise kernels do the same, and are called if they fit. With an fp32
operand the fp32 result is itself rounded before the second rounding, as in an engine that multiplies in fp32 registers
and stores 16 bits.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from moeparity.numerics.dtypes import TowardZero


def rounded(x: torch.Tensor, dtype: torch.dtype | TowardZero) -> torch.Tensor:
    """`x` rounded to nearest even in `dtype`, or toward zero; `x` itself if it has that dtype.

    fp64 goes to 16 bits by way of fp32, with two roundings, as in torch's casts.
    """
    if isinstance(dtype, TowardZero):
        return _cut(x, dtype.dtype)
    return x if x.dtype == dtype else x.to(dtype)


def stored(dtype: torch.dtype | TowardZero) -> torch.dtype:
    """The dtype of what is rounded so."""
    return dtype.dtype if isinstance(dtype, TowardZero) else dtype


def by_way_of(x: torch.Tensor, dtype: torch.dtype | TowardZero | str | None) -> torch.Tensor:
    """`x` rounded to a dtype, in its own again; as it is where the dtype is `unrounded` or there is none."""
    if dtype is None or isinstance(dtype, str):
        return x
    return rounded(rounded(x, dtype), x.dtype)


def _cut(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """`x` in bf16 by its leading 16 bits of fp32, as a kernel does that has no instruction for the conversion; of fp64
    by its leading bits too. A NaN whose leading bits are those of infinity becomes infinite.
    """
    if x.dtype == dtype:
        return x
    single = x.to(torch.float32)
    if x.dtype == torch.float64:
        above = single.double().abs() > x.abs()
        single = torch.where(above, torch.nextafter(single, torch.zeros_like(single)), single)
    return (single.contiguous().view(torch.int32) & -(1 << 16)).view(torch.float32).to(dtype)


def working(*dtypes: torch.dtype | TowardZero) -> torch.dtype:
    """The dtype in which a step between these dtypes is computed: fp32, or fp64 if one of them is."""
    return torch.float64 if torch.float64 in dtypes else torch.float32


def wide(x: torch.Tensor) -> torch.Tensor:
    """`x` in at least fp32, without loss."""
    return x.to(working(x.dtype))


def tf32(x: torch.Tensor) -> torch.Tensor:
    """An fp32 `x` rounded to TF32's 10 bits of mantissa, to nearest, ties away from zero; the result is fp32.

    Other dtypes are returned unchanged; 16-bit ones fit into TF32. Imitates cvt.rna.tf32.f32 (PTX ISA 8.5, read).
    Infinities and NaNs are kept; what rounds above the largest TF32 number becomes infinite.
    """
    if x.dtype != torch.float32:
        return x
    bits_lost = 13
    bits = (x.view(torch.int32) + (1 << bits_lost - 1)) & -(1 << bits_lost)
    return torch.where(x.isfinite(), bits.view(torch.float32), x)


def product(a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype | TowardZero) -> torch.Tensor:
    """Elementwise `a * b` in `working` dtype, rounded to `dtype`."""
    if a.dtype == b.dtype == dtype:
        return a * b
    step = working(a.dtype, b.dtype, dtype)
    return rounded(a.to(step) * b.to(step), dtype)


def add(a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype | TowardZero) -> torch.Tensor:
    """Elementwise `a + b` in `working` dtype, rounded to `dtype`."""
    if a.dtype == b.dtype == dtype:
        return a + b
    step = working(a.dtype, b.dtype, dtype)
    return rounded(a.to(step) + b.to(step), dtype)


def linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, inputs: torch.dtype, output: torch.dtype
) -> torch.Tensor:
    """`x @ weight.T + bias`: operands rounded to `inputs`, torch's own GEMM, result rounded to `output`.

    x [..., K], weight [N, K], bias [N]. If `inputs` and `output` are the same 16-bit dtype, torch's 16-bit kernel is
    called (fp32 accumulation in the kernel's own order, one rounding; it adds the bias inside). Otherwise it is torch's
    fp32 kernel on upcast operands: products of two 16-bit operands are exact in fp32, the order is that kernel's own,
    and the result is rounded once to `output`. If either dtype is fp64, it is torch's fp64 kernel.
    """
    x, weight = rounded(x, inputs), rounded(weight, inputs)
    if inputs == output:
        return F.linear(x, weight, bias if bias is None else rounded(bias, inputs))
    step = working(inputs, output)
    return rounded(F.linear(x.to(step), weight.to(step), bias if bias is None else bias.to(step)), output)
