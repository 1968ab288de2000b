"""exp_u20 of torch's vec library, Sleef's and glibc's expf, and glibc's logf, one number at a time; no torch, no
moeparity.

Every fp32 step is a fraction that is rounded once, by the instructions of vec512_float.h and by the steps that Sleef
publishes; of glibc the exact product of the table's power with the cubic is rounded once.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import math
import struct
from fractions import Fraction
from typing import Any

import numpy as np

F32 = np.float32
_LIBRARY = ctypes.CDLL(ctypes.util.find_library("m"))
_LIBRARY.logf.restype, _LIBRARY.logf.argtypes = ctypes.c_float, (ctypes.c_float,)


def bits(pattern: int) -> F32:
    """The fp32 of a pattern."""
    return F32(struct.unpack("<f", struct.pack("<I", pattern))[0])


def rounded(x: Fraction) -> F32:
    """A fraction in fp32, to nearest even."""
    near = F32(float(x))
    around = (F32(np.nextafter(near, F32(-math.inf))), near, F32(np.nextafter(near, F32(math.inf))))
    finite = [y for y in around if np.isfinite(y)]
    return min(finite, key=lambda y: (abs(Fraction(float(y)) - x), int(y.view(np.int32)) & 1))


def fma(a: F32, b: F32, c: F32) -> F32:
    return rounded(Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c)))


LOWEST, HIGHEST = bits(0xC2AEAC50), bits(0x42B17218)
POLYNOMIAL = [F32(c) for c in (0.00828929059, 0.0418978221, 0.166676521, 0.499991506, 0.999999701, 1.0)]


def exp_u20(x: F32) -> F32:
    """vminps, vmaxps, vfmadd, vrndscale down, vfnmadd, five vfmadd, a shifted exponent, two vmulps."""
    within = min(HIGHEST, x)  # this one for NaN, as vminps gives its second operand
    within = max(within, LOWEST)
    turns = math.floor(fma(within, bits(0x3FB8AA3B), F32(0.5)))
    rest = fma(F32(-turns), bits(0x3F317218), within)
    total = POLYNOMIAL[0]
    for coefficient in POLYNOMIAL[1:]:
        total = fma(rest, total, coefficient)
    half = F32(0) if x < LOWEST else bits((turns - 1 + 127) << 23)
    with np.errstate(over="ignore"):
        return F32(F32(total * half) * F32(2))


SLEEF = [
    F32(c)
    for c in (
        *(0.000198527617612853646278381, 0.00139304355252534151077271, 0.00833336077630519866943359),
        *(0.0416664853692054748535156, 0.166666671633720397949219, 0.5),
    )
]


def sleef_exp(x: F32) -> F32:
    """sleefsimdsp.c, xexpf: ln 2 in two parts is subtracted, a polynomial by fma, a shifted exponent."""
    if not -104 <= x <= 100:
        return x if np.isnan(x) else F32(0 if x < 0 else math.inf)
    turns = F32(np.rint(x * F32(1.442695040888963407)))
    rest = fma(turns, F32(-1.428606765330187045e-06), fma(turns, F32(-0.693145751953125), x))
    total = SLEEF[0]
    for coefficient in SLEEF[1:]:
        total = fma(total, rest, coefficient)
    total = F32(1) + fma(rest * rest, total, rest)
    with np.errstate(over="ignore"):
        return F32(math.ldexp(float(total), int(turns)))


def logf(x: F32) -> F32:
    """The C library's own."""
    return F32(_LIBRARY.logf(float(x)))


def expf(x: F32) -> F32:
    """2^(i/32) in fp64 times the cubic of e_expf.c, in fractions."""
    if not np.isfinite(x) or abs(x) > 80:
        return F32(0) if x < 0 else F32(math.inf)
    scaled = Fraction(float(x)) * Fraction(float.fromhex("0x1.71547652b82fep+0")) * 32
    turns = round(scaled)
    rest: Any = scaled - turns
    third, second, first = (
        Fraction(float.fromhex(c)) / 32**n
        for c, n in (("0x1.c6af84b912394p-5", 3), ("0x1.ebfce50fac4f3p-3", 2), ("0x1.62e42ff0c52d6p-1", 1))
    )
    cubic = third * rest**3 + second * rest**2 + first * rest + 1
    power = Fraction(2.0 ** (turns % 32 / 32)) * Fraction(2) ** (turns // 32)
    return rounded(power * cubic)
