"""`cvt`: between integers, floats, packed halves and fp8, rounded once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from moeparity.ptx.arithmetic import odd_add
from moeparity.ptx.formats import (
    F32,
    Array,
    Format,
    bf16_of_f32,
    canonical,
    dtype_of,
    f32_of,
    flush,
    fp8_of,
    fp8_values,
    integral,
    narrow,
    round_to,
    saturate,
    widen,
)
from moeparity.ptx.instructions.packed import join
from moeparity.ptx.table import Opcode, Operation, declare

_INTEGERS = frozenset(f"{kind}{bits}" for kind in "us" for bits in (8, 16, 32, 64))
_FLOATS = frozenset({"f16", "bf16", "f32", "f64"})
_DIRECTIONS = ("rn", "rz", "rm", "rp")
_WHOLE = ("rni", "rzi", "rmi", "rpi")
_TF32 = Format(11, -126, F32.largest, F32.nan)
_FP8 = {"e4m3x2": "e4m3", "e5m2x2": "e5m2"}


@declare("cvt", modifiers="rn rz rm rp rna rni rzi rmi rpi ftz sat satfinite relu")
def _(opcode: Opcode) -> Operation:
    if len(opcode.types) != 2:
        raise opcode.unknown("two types, to and from, are needed")
    to, of = opcode.types
    if to in _FP8 or of in _FP8:
        return _fp8(opcode, to, of)
    if to in {"f16x2", "bf16x2"} and of == "f32":
        half = _narrowing(opcode, to.removesuffix("x2"), of)
        return Operation(results=(to,), sources=(of, of), compute=lambda high, low: join(half(low), half(high)))
    if to == "tf32" and of == "f32":
        return _tf32(opcode)
    if to in _INTEGERS and of in _INTEGERS:
        return Operation(results=(to,), sources=(of,), compute=_resized(opcode, to, of))
    if to in _INTEGERS and of in _FLOATS:
        return Operation(results=(to,), sources=(of,), compute=_counted(opcode, to, of))
    if to in _FLOATS and of in _INTEGERS:
        return Operation(results=(to,), sources=(of,), compute=_from_integer(opcode, to, of))
    if to in _FLOATS and of in _FLOATS:
        return Operation(results=(to,), sources=(of,), compute=_float(opcode, to, of))
    raise opcode.unknown("no such conversion")


def _resized(opcode: Opcode, to: str, of: str) -> Callable[[Array], Array]:
    if opcode.modifiers - {"sat"}:
        raise opcode.unknown("integers are not rounded")
    dtype = dtype_of(to)
    if not opcode.has("sat"):
        return lambda a: a.astype(dtype)
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    limits = np.iinfo(dtype_of(of))
    return lambda a: np.clip(a, max(low, limits.min), min(high, limits.max)).astype(dtype)


def _counted(opcode: Opcode, to: str, of: str) -> Callable[[Array], Array]:
    """Float to integer: clamped to what the integer holds; NaN is 0, or the top bit alone where 64 bits are in play."""
    mode = opcode.one_of(_WHOLE)
    dtype = dtype_of(to)
    info = np.iinfo(dtype)
    nan = 1 << (info.bits - 1) if of == "f64" or info.bits == 64 else 0
    ftz = opcode.has("ftz")
    nan_bits = np.array([nan], dtype=np.uint64).astype(f"u{dtype.itemsize}").view(dtype)

    def compute(a: Array) -> Array:
        whole = integral(_wide(flush(a) if ftz else a, of), mode)
        below, above = whole <= float(info.min), whole >= float(info.max)
        inside = np.where(below | above | np.isnan(whole), 0.0, whole).astype(dtype)
        clamped = np.where(below, dtype.type(info.min), np.where(above, dtype.type(info.max), inside))
        return np.where(np.isnan(whole), nan_bits, clamped)

    return compute


def _from_integer(opcode: Opcode, to: str, of: str) -> Callable[[Array], Array]:
    mode = opcode.one_of(_DIRECTIONS)
    if opcode.modifiers - {mode} or (to == "f64" and mode != "rn"):
        raise opcode.unknown("no such conversion of an integer")
    if mode == "rn" and to in {"f32", "f64"}:
        return lambda a: a.astype(dtype_of(to))

    def compute(a: Array) -> Array:
        high, low = a >> a.dtype.type(8 * a.dtype.itemsize // 2), a & a.dtype.type((1 << 4 * a.dtype.itemsize) - 1)
        scale = 2.0 ** (4 * a.dtype.itemsize)
        exact = odd_add(high.astype(np.float64) * scale, low.astype(np.float64))
        return f32_of(exact, mode) if to == "f32" else narrow(exact, to, mode)

    return compute


def _float(opcode: Opcode, to: str, of: str) -> Callable[[Array], Array]:
    whole = opcode.modifiers & set(_WHOLE)
    widening = (to, of) in {("f32", "f16"), ("f32", "bf16"), ("f64", "f32"), ("f64", "f16"), ("f64", "bf16")}
    if whole or to == of or widening:
        return _exact(opcode, to, of)
    return _narrowing(opcode, to, of)


def _exact(opcode: Opcode, to: str, of: str) -> Callable[[Array], Array]:
    """Conversions that lose nothing, or round to whole numbers only."""
    mode = opcode.one_of(_WHOLE, "")
    if opcode.modifiers - {mode, "ftz", "sat"} or (mode and to != of):
        raise opcode.unknown("nothing is rounded there")
    ftz, sat = opcode.has("ftz"), opcode.has("sat")
    if (ftz and of != "f32" and to != "f32") or (sat and to not in {"f32", "f64"}):
        raise opcode.unknown("no such form")

    def compute(a: Array) -> Array:
        if of == "f32" and ftz:
            a = flush(a)
        if to == of and to in {"f16", "bf16"}:
            return narrow(integral(widen(a, of), mode), to) if mode else a
        if (to, of) == ("f32", "bf16"):
            # A shift on devices: fp64 would make a signaling NaN quiet.
            value = (a.astype(np.uint32) << np.uint32(16)).view(np.float32)
            return saturate(value) if sat else value
        value = _wide(a, of) if to != of else a
        value = integral(value, mode) if mode else value
        value = value.astype(dtype_of(to)) if to != of else value
        value = canonical(value) if to == "f32" else value
        return saturate(value) if sat else value

    return compute


def _narrowing(opcode: Opcode, to: str, of: str) -> Callable[[Array], Array]:
    mode = opcode.one_of((*_DIRECTIONS, "rna"))
    if mode == "rna" or (opcode.has("sat") and to != "f32") or (opcode.has("satfinite") and to == "f32"):
        raise opcode.unknown("no such rounding")
    ftz, finite, relu, sat = (opcode.has(word) for word in ("ftz", "satfinite", "relu", "sat"))
    if relu and to not in {"f16", "bf16"}:
        raise opcode.unknown("`.relu` is of 16-bit floats")
    if (to, of, mode) == ("bf16", "f32", "rn") and not (ftz or finite or relu):
        return bf16_of_f32

    def compute(a: Array) -> Array:
        wide = _wide(flush(a) if ftz and of == "f32" else a, of)
        if to == "f32":
            result = canonical(f32_of(wide, mode))
            result = flush(result) if ftz else result
            return saturate(result) if sat else result
        return narrow(np.where(wide > 0, wide, np.where(np.isnan(wide), wide, 0.0)) if relu else wide, to, mode,
                      finite=finite)  # fmt: skip

    return compute


def _tf32(opcode: Opcode) -> Operation:
    mode = opcode.one_of(("rna", "rn", "rz"))
    if opcode.modifiers - {mode}:
        raise opcode.unknown("`.satfinite` and `.relu` of tf32 are not built")

    def compute(a: Array) -> Array:
        return canonical(round_to(a.astype(np.float64), _TF32, mode).astype(np.float32)).view(np.uint32)

    return Operation(results=("tf32",), sources=("f32",), compute=compute)


def _fp8(opcode: Opcode, to: str, of: str) -> Operation:
    if opcode.modifiers - {"rn", "satfinite", "relu"} or not opcode.has("rn"):
        raise opcode.unknown("fp8 is rounded to nearest")
    relu = opcode.has("relu")
    if to == "f16x2" and of in _FP8 and not relu:
        values = fp8_values(_FP8[of])

        def unpacked(a: Array) -> Array:
            return join(*(narrow(values[(a >> np.uint16(at)) & np.uint16(0xFF)], "f16") for at in (0, 8)))

        return Operation(results=(to,), sources=(of,), compute=unpacked)
    if to not in _FP8 or of not in {"f32", "f16x2", "bf16x2"} or not opcode.has("satfinite"):
        raise opcode.unknown("no such conversion of fp8")

    def code(x: Array) -> Array:
        return fp8_of(np.where(np.isnan(x), x, np.maximum(x, 0.0)) if relu else x, _FP8[to])

    def packed(high: Array, low: Array) -> Array:
        return code(low).astype(np.uint16) | (code(high).astype(np.uint16) << np.uint16(8))

    if of == "f32":
        return Operation(
            results=(to,), sources=(of, of), compute=lambda a, b: packed(a.astype(np.float64), b.astype(np.float64))
        )
    single = of.removesuffix("x2")

    def from_pair(a: Array) -> Array:
        low, high = (widen((a >> np.uint32(at)).astype(np.uint16), single) for at in (0, 16))
        return packed(high, low)

    return Operation(results=(to,), sources=(of,), compute=from_pair)


def _wide(a: Array, type_: str) -> Array:
    return widen(a, type_) if type_ in {"f16", "bf16"} else a.astype(np.float64)
