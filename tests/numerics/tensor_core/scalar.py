"""The arithmetic of tensor cores one output at a time, on Python's fractions; shares nothing with moeparity's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import torch

from tests.numerics.scalar import FP16, FP32, nearest

LEAST = {
    "bf16": -126, "tf32": -126, "fp16": -14, "fp8_e5m2": -14, "fp8_e4m3": -6, "fp6_e3m2": -2, "fp6_e2m3": 0,
    "fp4_e2m1": 0,
}  # fmt: skip
"""Exponent of the smallest normal number of a format."""


def exponent(x: float, least: int) -> int:
    return max(math.frexp(x)[1] - 1, least)


def power(exponent: int) -> Fraction:
    return Fraction(2) ** exponent


def cut(x: Fraction, bits: int, *, negative: bool) -> float:
    """Toward zero to so many significant bits of an fp32; infinite from 2^128 on."""
    if not x:
        return -0.0 if negative else 0.0
    size = abs(x)
    above = size.numerator.bit_length() - size.denominator.bit_length()
    lead = above if power(above) <= size else above - 1
    unit = power(max(lead, -126) - bits + 1)
    value = size // unit * unit
    return math.copysign(math.inf if value >= power(128) else float(value), -1 if negative else 1)


def add(terms: Sequence[tuple[Fraction, int]], c: float, fraction: int, result: str, floor: int) -> float:
    """Terms, each with its exponent, and c: cut to one unit, added, rounded."""
    terms = [*terms, *([(Fraction(c), exponent(c, -14 if result == "fp16" else -126))] if c else [])]
    largest = max([floor, *(power_of for _, power_of in terms)])
    unit = power(largest - fraction)
    total = sum(math.trunc(value / unit) for value, _ in terms) * unit
    if result == "fp16":
        return nearest(total, FP16) if total else 0.0
    return cut(Fraction(total), {"fp32": 24, "fp32_e8m13": 14}[result], negative=total < 0)


def dot_add(
    a: Sequence[float], b: Sequence[float], c: float, formats: tuple[str, str], fraction: int, result: str, floor: int
) -> float:
    if not all(map(math.isfinite, (*a, *b, c))):
        return sum((x * y for x, y in zip(a, b, strict=True)), c)
    terms = [
        (Fraction(x) * Fraction(y), exponent(x, LEAST[formats[0]]) + exponent(y, LEAST[formats[1]]))
        for x, y in zip(a, b, strict=True)
        if x and y
    ]
    return add(terms, c, fraction, result, floor)


def scaled(
    a: Sequence[float], b: Sequence[float], c: float, scales: tuple[float, float], formats: tuple[str, str]
) -> float:
    """32 products with one ue8m0 scale for each side."""
    if not all(map(math.isfinite, (*a, *b, *scales, c))):
        return sum((x * y * scales[0] * scales[1] for x, y in zip(a, b, strict=True)), c)
    terms = [
        (
            Fraction(x) * Fraction(y) * Fraction(scales[0]) * Fraction(scales[1]),
            exponent(x, LEAST[formats[0]]) + exponent(y, LEAST[formats[1]]) + sum(exponent(s, -127) for s in scales),
        )
        for x, y in zip(a, b, strict=True)
        if x and y
    ]
    return add(terms, c, 25, "fp32", -133)


def late_addend(
    a: Sequence[float], b: Sequence[float], c: float, formats: tuple[str, str], result: str, floor: int
) -> float:
    """fp8 converted to fp16: 0, 1, 4, 5, .. from zero, then 2, 3, 6, 7, .., then c by an ordinary addition."""
    total = 0.0
    for first in (0, 2):
        at = [k + step for k in range(first, 32, 4) for step in (0, 1)]
        total = dot_add([a[k] for k in at], [b[k] for k in at], total, formats, 25, result, floor)
    if not (math.isfinite(total) and math.isfinite(c)):
        return total + c
    exact = Fraction(total) + Fraction(c)
    return nearest(exact, FP16 if result == "fp16" else FP32) if exact else total + c


def grouped(
    a: Sequence[float], b: Sequence[float], c: float, a_scales: Sequence[float], b_scales: Sequence[float], least: int
) -> float:
    """64 products of fp4 in groups of 16, each with the scales of its block."""
    if any(map(math.isnan, (*a_scales, *b_scales, c))) or math.isinf(c):
        return c + sum(a_scales) + sum(b_scales)
    block = 64 // len(a_scales)
    terms = []
    for k in range(0, 64, 16):
        product = sum(Fraction(a[k + i]) * Fraction(b[k + i]) for i in range(16))
        scales = abs(a_scales[k // block]), abs(b_scales[k // block])
        size = sum(exponent(scale, least) if scale else -126 for scale in scales)
        terms.append((product * Fraction(scales[0]) * Fraction(scales[1]), size))
    return add(terms, c, 35, "fp32", -126)


def patterns(values: Sequence[float], dtype: torch.dtype) -> torch.Tensor:
    """Values that `dtype` holds, with the one NaN of tensor cores, as integers."""
    integer, nan = {FP32: (torch.int32, 0x7FFFFFFF), FP16: (torch.int16, 0x7FFF)}[dtype]
    exact = torch.tensor(values, dtype=torch.float64)
    return exact.to(dtype).view(integer).masked_fill(exact.isnan(), nan)
