"""Integer arithmetic, modulo two to the width of the type."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from moeparity.ptx.formats import Array, dtype_of
from moeparity.ptx.table import Opcode, Operation

SIGNED = ("s16", "s32", "s64")
INTEGERS = ("u16", "u32", "u64", *SIGNED)
WIDER = {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}


def integer_arithmetic(opcode: Opcode) -> Operation:
    """add, sub, mul, div, rem, min, max, mad, neg, abs of one integer type."""
    type_ = opcode.type_of(INTEGERS)
    root = opcode.root
    if root in {"mul", "mad"}:
        return _product(opcode, type_)
    form = "relu" if root in {"min", "max"} else "sat"
    if opcode.modifiers - {form} or (opcode.modifiers and type_ != "s32"):
        raise opcode.unknown("an integer has no such form of it")
    if root in {"neg", "abs"}:
        return Operation(results=(type_,), sources=(type_,), compute=np.negative if root == "neg" else np.abs)
    compute = {
        "add": _saturating(np.add) if opcode.has("sat") else np.add,
        "sub": _saturating(np.subtract) if opcode.has("sat") else np.subtract,
        "div": _quotient,
        "rem": _remainder,
        "min": _not_negative(np.minimum) if opcode.has("relu") else np.minimum,
        "max": _not_negative(np.maximum) if opcode.has("relu") else np.maximum,
    }[root]
    return Operation(results=(type_,), sources=(type_, type_), compute=compute)


def _not_negative(operate: np.ufunc) -> Callable[[Array, Array], Array]:
    return lambda a, b: np.maximum(operate(a, b), 0)


def _product(opcode: Opcode, type_: str) -> Operation:
    part = opcode.one_of(("lo", "hi", "wide"))
    result = WIDER.get(type_) if part == "wide" else type_
    if result is None or opcode.modifiers - {part}:
        raise opcode.unknown("no such product")

    def multiply(a: Array, b: Array) -> Array:
        if part == "lo":
            return a * b
        if part == "wide":
            return a.astype(dtype_of(result)) * b.astype(dtype_of(result))
        return _high(a, b, type_)

    if opcode.root == "mul":
        return Operation(results=(result,), sources=(type_, type_), compute=multiply)
    return Operation(results=(result,), sources=(type_, type_, result), compute=lambda a, b, c: multiply(a, b) + c)


def _high(a: Array, b: Array, type_: str) -> Array:
    """The upper half of the product."""
    if type_ in WIDER:
        wide = dtype_of(WIDER[type_])
        bits = 8 * dtype_of(type_).itemsize
        return ((a.astype(wide) * b.astype(wide)) >> wide.type(bits)).astype(a.dtype)
    mask, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    x, y = a.view(np.uint64), b.view(np.uint64)
    x_low, x_high, y_low, y_high = x & mask, x >> half, y & mask, y >> half
    middle = x_high * y_low + ((x_low * y_low) >> half)
    low_middle = x_low * y_high + (middle & mask)
    high = x_high * y_high + (middle >> half) + (low_middle >> half)
    if type_ == "s64":
        zero = np.uint64(0)
        high = high - np.where(a < 0, y, zero) - np.where(b < 0, x, zero)
    return high.view(a.dtype)


def _saturating(operate: np.ufunc) -> Callable[[Array, Array], Array]:
    def compute(a: Array, b: Array) -> Array:
        exact = operate(a.astype(np.int64), b.astype(np.int64))
        return np.clip(exact, -(2**31), 2**31 - 1).astype(np.int32)

    return compute


def _quotient(a: Array, b: Array) -> Array:
    """Toward zero; of a division by zero all bits are set, as hardware gives them (the ISA leaves it open)."""
    quotient, _ = _divided(a, b)
    return quotient


def _remainder(a: Array, b: Array) -> Array:
    """With the sign of the dividend; the dividend itself of a division by zero."""
    return _divided(a, b)[1]


def _divided(a: Array, b: Array) -> tuple[Array, Array]:
    zero = b == 0
    divisor = np.where(zero, b.dtype.type(1), b)
    quotient = a // divisor
    remainder = a - quotient * divisor
    # numpy rounds down: one more where that is not toward zero.
    below = (remainder != 0) & ((a < 0) != (divisor < 0))
    quotient = quotient + below.astype(a.dtype)
    remainder = a - quotient * divisor
    all_ones = np.array(-1).astype(a.dtype)
    return np.where(zero, all_ones, quotient), np.where(zero, a, remainder)
