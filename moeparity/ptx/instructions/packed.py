"""Arithmetic of f16, bf16 and their packed pairs: each half rounded once to nearest even."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from moeparity.ptx import arithmetic
from moeparity.ptx.formats import Array, widen
from moeparity.ptx.table import Opcode, Operation

HALVES = ("f16", "bf16", "f16x2", "bf16x2")
_NAN = np.uint16(0x7FFF)


def half_arithmetic(opcode: Opcode) -> Operation:
    """add, sub, mul, fma, min, max, neg, abs of 16-bit floats."""
    type_ = opcode.type_of(HALVES)
    if opcode.modifiers - {"rn", "NaN", "relu"}:
        raise opcode.unknown("of 16-bit floats `.ftz` and `.sat` are not built")
    single = type_.removesuffix("x2")
    compute = _compute(opcode.root, single, nan=opcode.has("NaN"))
    if opcode.has("relu"):
        compute = _relu(compute, single)
    count = {"fma": 3, "neg": 1, "abs": 1}.get(opcode.root, 2)
    return Operation(
        results=(type_,),
        sources=(type_,) * count,
        compute=on_both_halves(compute) if type_ != single else compute,
    )


INTEGER_PAIRS = ("u16x2", "s16x2")


def pairs_sum(opcode: Opcode) -> Operation:
    """Two integers of 16 bits at once, modulo 2^16 each; of such only sums are built."""
    type_ = opcode.type_of(INTEGER_PAIRS)
    if opcode.root != "add" or opcode.modifiers:
        raise opcode.unknown("pairs of integers are added")
    return Operation(results=(type_,), sources=(type_, type_), compute=on_both_halves(np.add))


def on_both_halves(compute: Callable[..., Array]) -> Callable[..., Array]:
    """A computation on 16 bits done on both halves of 32."""

    def halves(*operands: Array) -> Array:
        low = compute(*((x & np.uint32(0xFFFF)).astype(np.uint16) for x in operands))
        high = compute(*((x >> np.uint32(16)).astype(np.uint16) for x in operands))
        return join(low, high)

    return halves


def join(low: Array, high: Array) -> Array:
    """Two times 16 bits as 32."""
    return low.astype(np.uint32) | (high.astype(np.uint32) << np.uint32(16))


def _compute(root: str, type_: str, *, nan: bool) -> Callable[..., Array]:
    if root == "neg":
        return lambda x: x ^ np.uint16(0x8000)
    if root == "abs":
        return lambda x: x & np.uint16(0x7FFF)
    if root in {"min", "max"}:
        return lambda a, b: _chosen(root, type_, a, b, nan=nan)
    return lambda *operands: arithmetic.half(type_, root, *operands)


def _chosen(root: str, type_: str, a: Array, b: Array, *, nan: bool) -> Array:
    x, y = widen(a, type_), widen(b, type_)
    take_a = (x < y) | ((x == y) & np.signbit(x))
    if root == "max":
        take_a = (x > y) | ((x == y) & ~np.signbit(x))
    chosen = np.where(take_a, a, b)
    if nan:
        return np.where(np.isnan(x) | np.isnan(y), _NAN, chosen)
    chosen = np.where(np.isnan(y), a, np.where(np.isnan(x), b, chosen))
    return np.where(np.isnan(x) & np.isnan(y), _NAN, chosen)


def _relu(compute: Callable[..., Array], type_: str) -> Callable[..., Array]:
    """Negative results, and -0, to +0; NaN stays the canonical one."""

    def clamped(*operands: Array) -> Array:
        result = compute(*operands)
        number = ~np.isnan(widen(result, type_))
        return np.where(number & (result >= np.uint16(0x8000)), np.uint16(0), result)

    return clamped
