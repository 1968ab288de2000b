"""IEEE arithmetic on arrays with one rounding in any direction: sums, products, fused multiply-adds, quotients, roots.

If the direction is not to nearest, and for 16-bit formats, the exact result is first rounded to odd in fp64
(`moeparity.numerics.fma`). Rounding that value again gives the same as rounding the exact result once.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import torch

from moeparity.numerics.fma import fma, sum_to_odd
from moeparity.ptx.formats import Array, canonical, f32_of, narrow, widen


def tensor(x: Array) -> torch.Tensor:
    """The same numbers as a tensor, without a copy where numpy allows it."""
    return torch.from_numpy(x if x.flags.writeable else x.copy())


def odd_add(a: Array, b: Array, mode: str = "rn") -> Array:
    """fp64 sum rounded to odd; one of 0 has the sign that IEEE gives it in this direction."""
    total = _array(sum_to_odd(tensor(a), tensor(b)))
    if mode != "rm":
        return total
    positive = (a == 0) & (b == 0) & ~np.signbit(a) & ~np.signbit(b)
    return np.where((total == 0) & ~positive, -0.0, total)


def odd_quotient(a: Array, b: Array) -> Array:
    """Quotient of two fp32, in fp64, rounded to odd."""
    quotient = a.astype(np.float64) / b.astype(np.float64)
    # The remainder is exact: 53 and 24 bits.
    remainder = _array(fma(tensor(-quotient), tensor(b.astype(np.float64)), tensor(a.astype(np.float64))))
    return _to_odd(quotient, np.where(np.signbit(b), -remainder, remainder))


def odd_root(a: Array) -> Array:
    """Square root of fp32, in fp64, rounded to odd."""
    wide = a.astype(np.float64)
    root = np.sqrt(wide)
    return _to_odd(root, _array(fma(tensor(-root), tensor(root), tensor(wide))))


def add(a: Array, b: Array, mode: str) -> Array:
    """fp32 or fp64 sum; a NaN of fp32 is canonical."""
    if mode == "rn":
        return canonical(a + b) if a.dtype == np.float32 else a + b
    return canonical(f32_of(odd_add(a.astype(np.float64), b.astype(np.float64), mode), mode))


def multiply(a: Array, b: Array, mode: str) -> Array:
    """fp32 or fp64 product."""
    if mode == "rn":
        return canonical(a * b) if a.dtype == np.float32 else a * b
    return canonical(f32_of(a.astype(np.float64) * b.astype(np.float64), mode))


def fused(a: Array, b: Array, c: Array, mode: str) -> Array:
    """fp32 or fp64 `a * b + c`, rounded once."""
    if a.dtype == np.float64:
        return _fused_double(a, b, c)
    if mode == "rn":
        return canonical(_array(fma(tensor(a), tensor(b), tensor(c))))
    product = a.astype(np.float64) * b.astype(np.float64)
    return canonical(f32_of(odd_add(product, c.astype(np.float64), mode), mode))


def divide(a: Array, b: Array, mode: str) -> Array:
    """fp32 or fp64 quotient."""
    if mode == "rn":
        return canonical(a / b) if a.dtype == np.float32 else a / b
    return canonical(f32_of(odd_quotient(a, b), mode))


def root(a: Array, mode: str) -> Array:
    """fp32 or fp64 square root."""
    if mode == "rn":
        return canonical(np.sqrt(a)) if a.dtype == np.float32 else np.sqrt(a)
    return canonical(f32_of(odd_root(a), mode))


def half(type_: str, compute: str, *operands: Array) -> Array:
    """add, sub, mul or fma of bits of f16 or bf16, rounded once to nearest even."""
    x = [widen(operand, type_) for operand in operands]
    if compute in {"mul", "fma"}:
        product = x[0] * x[1]
        exact = product if compute == "mul" else odd_add(product, x[2])
    else:
        exact = odd_add(x[0], x[1] if compute == "add" else -x[1])
    return narrow(exact, type_)


def smaller(a: Array, b: Array) -> Array:
    """The less of two floats: -0 below +0, a number rather than a NaN."""
    return _one_of(a, b, (a < b) | ((a == b) & np.signbit(a)))


def larger(a: Array, b: Array) -> Array:
    """The greater of two floats: +0 above -0, a number rather than a NaN."""
    return _one_of(a, b, (a > b) | ((a == b) & np.signbit(b)))


def _one_of(a: Array, b: Array, first: Array) -> Array:
    # Not numpy's fmin, to which a signaling NaN and a number are a NaN.
    chosen = np.where((first & ~np.isnan(a)) | np.isnan(b), a, b)
    return canonical(chosen) if a.dtype == np.float32 else chosen


def _array(x: torch.Tensor) -> Array:
    array: Array = x.numpy()
    return array


def _to_odd(nearest: Array, remainder: Array) -> Array:
    """fp64 to nearest with the sign of what is missing, to odd."""
    bits = nearest.view(np.int64)
    toward = np.where((remainder > 0) == (nearest > 0), 1, -1)
    inexact = (remainder != 0) & np.isfinite(remainder) & np.isfinite(nearest) & (bits & 1 == 0)
    odd: Array = np.where(inexact, bits + toward, bits).view(np.float64)
    return odd


def _fused_double(a: Array, b: Array, c: Array) -> Array:
    """fp64 fma; by fractions where `moeparity.numerics.fma` is out of its range."""
    a, b, c = (x.copy() for x in np.broadcast_arrays(a, b, c))
    result = _array(fma(tensor(a), tensor(b), tensor(c)))
    size = np.abs(a * b)
    far = (np.abs(a) > 2.0**995) | (np.abs(b) > 2.0**995) | (size > 2.0**1022) | (np.abs(c) > 2.0**1022)
    far |= (size < 2.0**-968) & (a != 0) & (b != 0)
    for at in np.flatnonzero(far & np.isfinite(a) & np.isfinite(b) & np.isfinite(c)):
        exact = Fraction(float(a[at])) * Fraction(float(b[at])) + Fraction(float(c[at]))
        result[at] = _nearest(exact) if exact else a[at] * b[at] + c[at]
    return result


def _nearest(x: Fraction) -> float:
    try:
        return float(x)
    except OverflowError:
        return float("inf") if x > 0 else float("-inf")
