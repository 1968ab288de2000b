"""CUDA's expf, logf, tanhf and their fast forms one number at a time, by fractions, written from nvcc's PTX.

Constants are the bits that stand there. Approximate instructions are by table, which `special_functions` holds to an
H200's recorded numbers.
"""

from __future__ import annotations

import math
import struct
from fractions import Fraction

import torch

from moeparity.numerics.special_functions.functions import approximate
from tests.numerics.scalar import FP32, nearest

TINY = 2.0**-126


def bits(pattern: int) -> float:
    """The fp32 of a pattern."""
    return float(struct.unpack("<f", struct.pack("<I", pattern & 0xFFFFFFFF))[0])


def pattern(x: float) -> int:
    return int(struct.unpack("<I", struct.pack("<f", x))[0])


def fma(a: float, b: float, c: float) -> float:
    """fp32, rounded once."""
    if not all(map(math.isfinite, (a, b, c))):
        return a * b + c
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    return nearest(exact, FP32) if exact else a * b + c


def flushed(x: float) -> float:
    return math.copysign(0.0, x) if abs(x) < TINY else x


def instruction(name: str, x: float) -> float:
    """One of `.approx.ftz.f32`."""
    return float(approximate(name, torch.tensor([x]), ftz=True))


def ex2(x: float) -> float:
    return instruction("ex2", x)


def expf(x: float) -> float:
    share = fma(x, bits(0x3BBB989D), 0.5)
    share = 0.0 if math.isnan(share) else min(max(share, 0.0), 1.0)
    floor = math.floor(Fraction(share) * 252 + Fraction(bits(0x4B400001)))  # fma.rm, whose results are whole numbers
    rest = fma(x, bits(0x3FB8AA3B), -fma(1.0, float(floor), bits(0xCB40007F)))
    rest = fma(x, bits(0x32A57060), rest)
    power = bits(pattern(float(floor)) << 23)
    value = ex2(rest)
    return nearest(Fraction(value) * Fraction(power), FP32) if value and math.isfinite(value) else value * power


def fast_expf(x: float) -> float:
    x = flushed(x)
    return ex2(flushed(fma(x, bits(0x3FB8AA3B), -0.0)))


def logf(x: float) -> float:
    tiny = x < TINY
    scaled = fma(x, bits(0x4B000000), 0.0) if tiny else x
    if not 0 < scaled < math.inf:
        return -math.inf if scaled == 0 else scaled if scaled > 0 else math.nan
    exponent = pattern(scaled) - 1059760811 & 0xFF800000
    whole = exponent - (1 << 32) if exponent >> 31 else exponent
    power = fma(float(whole), bits(0x34000000), -23.0 if tiny else 0.0)
    rest = fma(1.0, bits(pattern(scaled) - whole), -1.0)
    total = bits(0xBE055027)
    for constant in (0x3E1039F6, 0xBDF8CDCC, 0x3E0F2955, 0xBE2AD8B9, 0x3E4CED0B, 0xBE7FFF22, 0x3EAAAA78, 0xBF000000):
        total = fma(total, rest, bits(constant))
    return fma(power, bits(0x3F317218), fma(fma(rest, total, 0.0), rest, rest))


def tanhf(x: float) -> float:
    size = abs(x)
    if size >= bits(0x3F19999A):
        shrunk = instruction("rcp", fma(1.0, ex2(fma(size, bits(0x4038AA3B), 0.0)), 1.0))
        value = 1.0 if size >= bits(0x41102CB4) else fma(flushed(shrunk), -2.0, 1.0)
        return math.copysign(value, x)
    square, total = fma(x, x, 0.0), bits(0x3C80F082)
    for constant in (0xBD563CAE, 0x3E085941, 0xBEAAA9ED, 0x00000000):
        total = fma(total, square, bits(constant))
    return fma(total, x, x)


def fast_divide(a: float, b: float) -> float:
    """`div.approx.ftz`: above 2^126 the reciprocal is 0."""
    return flushed(fma(flushed(a), instruction("rcp", b), -0.0))


def triton_exp(x: float) -> float:
    """`ex2.approx.f32` of the product with log2(e), which keeps subnormal numbers."""
    return float(approximate("ex2", torch.tensor([fma(x, bits(0x3FB8AA3B), -0.0)])))


def div_full(a: float, b: float) -> float:
    """`div.full.f32` where b is neither subnormal nor above 2^126: a times `rcp.approx` of b."""
    assert TINY <= abs(b) <= 2.0**126
    return fma(float(approximate("rcp", torch.tensor([b]))), a, -0.0)
