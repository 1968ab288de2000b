"""PTX types: what a register of each holds, and rounding to every floating-point format once, in any direction."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

TYPES: dict[str, str] = {
    **{f"{kind}{bits}": f"{letter}{bits // 8}" for kind, letter in (("u", "u"), ("s", "i"), ("b", "u"))
       for bits in (8, 16, 32, 64)},
    "f16": "u2", "bf16": "u2", "f16x2": "u4", "bf16x2": "u4", "f32": "f4", "f64": "f8", "tf32": "u4",
    "u16x2": "u4", "s16x2": "u4", "e4m3": "u1", "e5m2": "u1", "e4m3x2": "u2", "e5m2x2": "u2", "pred": "?",
}  # fmt: skip
"""PTX type -> numpy dtype of its values. 16-bit floats, packed pairs and fp8 are kept as their bits."""

REGISTERS: dict[int, np.dtype[Any]] = {
    1: np.dtype(np.uint8),
    2: np.dtype(np.uint16),
    4: np.dtype(np.uint32),
    8: np.dtype(np.uint64),
}
"""Bytes -> dtype of a register that wide; predicates are bool."""


def dtype_of(type_: str) -> np.dtype[Any]:
    """The numpy dtype that values of a PTX type have."""
    return np.dtype(TYPES[type_])


@dataclass(frozen=True, slots=True)
class Format:
    """A float format: bits of the significand with the hidden one, the least exponent of a normal number, the largest
    number.

    `nan`: the bits of the NaN that instructions give. `infinite`: whether the format has infinities.
    """

    precision: int
    least: int
    largest: float
    nan: int
    infinite: bool = True


F32 = Format(24, -126, float(np.finfo(np.float32).max), 0x7FFFFFFF)
F16 = Format(11, -14, 65504.0, 0x7FFF)
BF16 = Format(8, -126, float(np.uint32(0x7F7F0000).view(np.float32)), 0x7FFF)
E4M3 = Format(4, -6, 448.0, 0x7F, infinite=False)
E5M2 = Format(3, -14, 57344.0, 0x7F)

_TOWARD = {"rn": np.rint, "rz": np.trunc, "rm": np.floor, "rp": np.ceil, "rni": np.rint, "rzi": np.trunc,
           "rmi": np.floor, "rpi": np.ceil}  # fmt: skip


def integral(x: Array, mode: str) -> Array:
    """Rounded to a whole number."""
    rounded: Array = _TOWARD[mode](x)
    return rounded


def nearest_away(x: Array) -> Array:
    """Rounded to a whole number, halves away from zero: `rna`. |x| below 2^52, or whole already."""
    whole = np.trunc(x)
    up: Array = np.where(np.abs(x - whole) >= 0.5, whole + np.sign(x), whole)
    return up


def round_to(x: Array, format: Format, mode: str = "rn", *, finite: bool = False) -> Array:
    """fp64 `x`, rounded to a format, still in fp64. With `finite` a number that is too large becomes the largest
    number.

    Modes: rn (nearest even), rna (nearest, ties away), rz, rm (down), rp (up). What overflows becomes infinite, or the
    largest number if the direction is toward zero. If x was rounded to odd before, the result is the exact value
    rounded once.
    """
    _, exponent = np.frexp(x)
    quantum = np.maximum(exponent - 1, format.least) - (format.precision - 1)
    scaled = np.ldexp(x, -quantum)
    whole = nearest_away(scaled) if mode == "rna" else integral(scaled, mode)
    result = np.copysign(np.ldexp(whole, quantum), x)
    result = np.where(np.isfinite(x), result, x)
    beyond = np.abs(result) > format.largest
    if beyond.any():
        never = np.zeros(1, bool)
        toward_zero = {"rz": ~never, "rm": x > 0, "rp": x < 0}.get(mode, never) & np.isfinite(x)
        limit = np.where(toward_zero | finite, format.largest, np.inf)
        result = np.where(beyond, np.copysign(limit, x), result)
    return result


def f32_of(x: Array, mode: str) -> Array:
    """fp64, rounded to odd before where it is not exact, to fp32."""
    return x.astype(np.float32) if mode == "rn" else round_to(x, F32, mode).astype(np.float32)


def canonical(x: Array) -> Array:
    """fp32 with every NaN replaced by the one that instructions give, 0x7fffffff."""
    nan = np.isnan(x)
    if not nan.any():
        return x
    return np.where(nan, np.uint32(F32.nan).view(np.float32), x)


def flush(x: Array) -> Array:
    """fp32 with subnormal numbers replaced by zeros of their sign: `.ftz`."""
    return np.where(np.abs(x) < np.float32(2.0**-126), np.copysign(np.float32(0), x), x)


def saturate(x: Array) -> Array:
    """Clamped to [0, 1], NaN to +0: `.sat`."""
    clamped = np.minimum(np.maximum(x, x.dtype.type(0)), x.dtype.type(1))
    return np.where(np.isnan(x) | (x <= 0), x.dtype.type(0), clamped)


def widen(bits: Array, type_: str) -> Array:
    """Bits of f16 or bf16 as fp64; exact."""
    if type_ == "f16":
        return bits.view(np.float16).astype(np.float64)
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)


def narrow(x: Array, type_: str, mode: str = "rn", *, finite: bool = False) -> Array:
    """fp64 to the bits of f16 or bf16, rounded once; NaN to 0x7fff."""
    format = F16 if type_ == "f16" else BF16
    rounded = round_to(x, format, mode, finite=finite)
    if type_ == "f16":
        bits = rounded.astype(np.float16).view(np.uint16)
    else:
        bits = (rounded.astype(np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    return np.where(np.isnan(x), np.uint16(format.nan), bits)


def bf16_of_f32(x: Array) -> Array:
    """fp32 to the bits of bf16, to nearest even, by integer arithmetic: what compilers emit most."""
    bits = x.view(np.uint32)
    rounded = (bits + (((bits >> np.uint32(16)) & np.uint32(1)) + np.uint32(0x7FFF))) >> np.uint32(16)
    return np.where(np.isnan(x), np.uint32(BF16.nan), rounded).astype(np.uint16)


def fp8_of(x: Array, type_: str) -> Array:
    """fp64 to the bits of e4m3 or e5m2, `.rn.satfinite`: too large and infinite become the largest number."""
    format = E4M3 if type_ == "e4m3" else E5M2
    rounded = np.abs(round_to(x, format, finite=True))
    fraction = format.precision - 1
    exponent = np.where(rounded == 0, format.least, np.maximum(np.frexp(rounded)[1] - 1, format.least))
    # Of a subnormal number the least exponent's code stands one too high.
    significand = np.ldexp(np.where(np.isnan(x), 0.0, rounded), fraction - exponent).astype(np.int64)
    code = significand + ((exponent - format.least).astype(np.int64) << fraction)
    return np.where(np.isnan(x), format.nan, code | (np.signbit(x).astype(np.int64) << 7)).astype(np.uint8)


@lru_cache(maxsize=2)
def fp8_values(type_: str) -> Array:
    """The 256 values of e4m3 or e5m2 in fp64."""
    format = E4M3 if type_ == "e4m3" else E5M2
    codes = np.arange(256)
    fraction = format.precision - 1
    exponent, significand = (codes & 0x7F) >> fraction, codes & ((1 << fraction) - 1)
    subnormal = exponent == 0
    hidden = np.where(subnormal, 0, 1 << fraction)
    values = np.ldexp(
        (hidden + significand).astype(float), np.where(subnormal, 1, exponent) - 1 + format.least - fraction
    )
    if format.infinite:
        values = np.where(exponent == 31, np.where(significand == 0, np.inf, np.nan), values)
    else:
        values = np.where((codes & 0x7F) == 0x7F, np.nan, values)
    return np.copysign(values, np.where(codes >= 128, -1.0, 1.0))
