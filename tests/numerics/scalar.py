"""IEEE arithmetic on Python numbers: exact fractions, rounded to nearest even one operation at a time."""

from __future__ import annotations

import math
from fractions import Fraction

import torch
from hypothesis import strategies as st

BF16, FP16, FP32, FP64 = torch.bfloat16, torch.float16, torch.float32, torch.float64
DTYPES = (BF16, FP16, FP32)

FORMATS = {BF16: (8, -126, 127), FP16: (11, -14, 15), FP32: (24, -126, 127), FP64: (53, -1022, 1023)}
"""Significand bits, least and greatest exponent of a normal number."""


def nearest(x: Fraction | float, dtype: torch.dtype) -> float:
    """`x` rounded to nearest even; infinite beyond the greatest finite number. A signed zero keeps its sign."""
    if x == 0 or (isinstance(x, float) and math.isinf(x)):
        return float(x)
    precision, least, greatest = FORMATS[dtype]
    magnitude = abs(Fraction(x))
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    exponent -= magnitude < Fraction(2) ** exponent
    step = Fraction(2) ** (max(exponent, least) - precision + 1)
    rounded = round(magnitude / step) * step
    value = math.inf if rounded >= Fraction(2) ** (greatest + 1) else float(rounded)
    return math.copysign(value, x)


def add(a: float, b: float, dtype: torch.dtype) -> float:
    """The sum in fp32, then in `dtype`."""
    if math.isinf(a) or math.isinf(b) or a == b == 0:
        return a + b
    return nearest(nearest(Fraction(a) + Fraction(b), FP32), dtype)


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


def tensor(values: list[float], dtype: torch.dtype) -> torch.Tensor:
    """Values that the dtype holds exactly."""
    made = torch.tensor(values, dtype=torch.float64).to(dtype)
    assert made.double().tolist() == values
    return made
