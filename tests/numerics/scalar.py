"""IEEE arithmetic on Python numbers: exact fractions, rounded to nearest even one operation at a time."""

from __future__ import annotations

import math
from fractions import Fraction

import torch
from hypothesis import strategies as st

from moeparity.numerics.bits import same_bits

BF16, FP16, FP32, FP64 = torch.bfloat16, torch.float16, torch.float32, torch.float64
DTYPES = (BF16, FP16, FP32)

FORMATS = {BF16: (8, -126, 127), FP16: (11, -14, 15), FP32: (24, -126, 127), FP64: (53, -1022, 1023)}
"""Significand bits, least and greatest exponent of a normal number."""


def nearest(x: Fraction | float, dtype: torch.dtype) -> float:
    """`x` rounded to nearest even; infinite beyond the greatest finite number. A signed zero keeps its sign."""
    if x == 0 or (isinstance(x, float) and math.isinf(x)):
        return float(x)
    precision, least, greatest = FORMATS[dtype]
    signed, below = x.as_integer_ratio()
    above = abs(signed)
    exponent = above.bit_length() - below.bit_length()
    exponent -= above << max(-exponent, 0) < below << max(exponent, 0)
    # How often 2^unit goes into the number, and what is left over.
    unit = max(exponent, least) - precision + 1
    below <<= max(unit, 0)
    count, remainder = divmod(above << max(-unit, 0), below)
    count += 2 * remainder > below or (2 * remainder == below and count % 2 == 1)
    value = math.inf if count.bit_length() + unit > greatest + 1 else math.ldexp(count, unit)
    return math.copysign(value, x)


def add(a: float, b: float, dtype: torch.dtype, step: torch.dtype = FP32) -> float:
    """The sum in `step`, then in `dtype`."""
    return total([a, b], dtype, step)


def total(values: list[float], dtype: torch.dtype, step: torch.dtype = FP32) -> float:
    """The exact sum in `step`, then in `dtype`: one IEEE addition of all values."""
    if not all(map(math.isfinite, values)) or not any(values):
        plain = values[0]
        for value in values[1:]:
            plain += value
        return plain
    return cast(nearest(sum(map(Fraction, values), Fraction(0)), step), dtype)


def cast(x: float, dtype: torch.dtype) -> float:
    """An fp64 or narrower number in `dtype`, as torch casts: to 16 bits by way of fp32."""
    if math.isnan(x):
        return x
    return nearest(x if dtype in (FP32, FP64) else nearest(x, FP32), dtype)


def fma(a: float, b: float, c: float, dtype: torch.dtype, step: torch.dtype = FP32) -> float:
    """`a * b + c` in `step`, then in `dtype`, of finite numbers."""
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact:
        return cast(nearest(exact, step), dtype)
    # Zeros add as zeros do; what cancels is +0.
    return a * b + c if c == 0 and (a == 0 or b == 0) else 0.0


def multiply(a: float, b: float, dtype: torch.dtype) -> float:
    """The product of finite numbers in fp32, then in `dtype`."""
    if a == 0 or b == 0:
        return a * b
    return nearest(nearest(Fraction(a) * Fraction(b), FP32), dtype)


def number(dtype: torch.dtype, *, exponents: int) -> st.SearchStrategy[float]:
    """Signed zeros and numbers of `dtype` about 2^-exponents to 2^exponents, all 2^e * m with a full-width m."""
    precision, least, greatest = FORMATS[dtype]
    low, high = max(least, -exponents), min(greatest, exponents)
    signed = st.tuples(st.booleans(), st.integers(0, (1 << precision) - 1), st.integers(low, high))
    return signed.map(lambda s: math.copysign(math.ldexp(s[1], s[2] - precision + 1), -1 if s[0] else 1))


def any_number(dtype: torch.dtype) -> st.SearchStrategy[float]:
    """Every value of `dtype` alike: subnormal, infinite, NaN, either zero; often a simple one, so that sums meet."""
    bits, integer = {
        BF16: (16, torch.int16),
        FP16: (16, torch.int16),
        FP32: (32, torch.int32),
        FP64: (64, torch.int64),
    }[dtype]
    pattern = st.integers(-(1 << bits - 1), (1 << bits - 1) - 1)
    simple = st.sampled_from([0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan])
    near_one = number(dtype, exponents=8)
    return simple | near_one | pattern.map(lambda p: torch.tensor([p], dtype=integer).view(dtype).double().item())


def tensor(values: list[float], dtype: torch.dtype) -> torch.Tensor:
    """Values that the dtype holds exactly."""
    x = torch.tensor(values, dtype=torch.float64).to(dtype)
    assert all(a == b or (math.isnan(a) and math.isnan(b)) for a, b in zip(x.double().tolist(), values, strict=True))
    return x


def same_numbers(a: torch.Tensor, b: torch.Tensor) -> bool:
    """The same bits, except that a NaN equals every NaN: which one it is is the processor's business."""
    return torch.equal(a.isnan(), b.isnan()) and same_bits(
        a.nan_to_num(nan=0.0, posinf=math.inf, neginf=-math.inf),
        b.nan_to_num(nan=0.0, posinf=math.inf, neginf=-math.inf),
    )
