"""Bits: logic, shifts, fields, permutations, counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from moeparity.ptx.formats import Array, dtype_of
from moeparity.ptx.table import Opcode, Operation, declare

_BITS = ("b16", "b32", "b64")


@declare("and", "or", "xor", "not", "cnot")
def _(opcode: Opcode) -> Operation:
    type_ = opcode.type_of(("pred", *_BITS) if opcode.root != "cnot" else _BITS)
    computations: dict[str, Callable[..., Any]] = {
        "and": np.bitwise_and,
        "or": np.bitwise_or,
        "xor": np.bitwise_xor,
        "not": np.invert,
        "cnot": lambda a: (a == 0).astype(a.dtype),
    }
    compute = computations[opcode.root]
    count = 1 if opcode.root in {"not", "cnot"} else 2
    return Operation(results=(type_,), sources=(type_,) * count, compute=compute)


@declare("shl", "shr")
def _(opcode: Opcode) -> Operation:
    """Amounts at or above the width shift everything out; an arithmetic shift leaves the sign."""
    type_ = opcode.type_of(_BITS if opcode.root == "shl" else (*_BITS, "u16", "u32", "u64", "s16", "s32", "s64"))
    width = 8 * dtype_of(type_).itemsize

    def left(a: Array, amount: Array) -> Array:
        return np.where(amount >= width, a.dtype.type(0), a << _inside(amount, width).astype(a.dtype))

    def right(a: Array, amount: Array) -> Array:
        shifted = a >> _inside(amount, width).astype(a.dtype)
        rest = a >> a.dtype.type(width - 1) if type_.startswith("s") else a.dtype.type(0)
        return np.where(amount >= width, rest, shifted)

    return Operation(results=(type_,), sources=(type_, "u32"), compute=left if opcode.root == "shl" else right)


@declare("shf", modifiers="l r wrap clamp")
def _(opcode: Opcode) -> Operation:
    """A funnel of b:a, 64 bits, shifted; the upper half of a left shift, the lower of a right one."""
    type_ = opcode.type_of(("b32",))
    to_left, wrap = opcode.one_of(("l", "r")) == "l", opcode.one_of(("wrap", "clamp")) == "wrap"

    def compute(a: Array, b: Array, c: Array) -> Array:
        amount = (c & np.uint32(31) if wrap else np.minimum(c, np.uint32(32))).astype(np.uint64)
        funnel = (b.astype(np.uint64) << np.uint64(32)) | a
        shifted = (funnel << amount) >> np.uint64(32) if to_left else funnel >> amount
        return shifted.astype(np.uint32)

    return Operation(results=(type_,), sources=(type_, type_, "u32"), compute=compute)


@declare("lop3")
def _(opcode: Opcode) -> Operation:
    type_ = opcode.type_of(("b32",))

    def compute(a: Array, b: Array, c: Array, table: Array) -> Array:
        result = np.zeros(1, np.uint32)
        for case in range(8):
            chosen = [x if case >> 2 - at & 1 else ~x for at, x in enumerate((a, b, c))]
            present = np.where((table >> np.uint32(case)) & np.uint32(1) != 0, np.uint32(0xFFFFFFFF), np.uint32(0))
            result = result | (chosen[0] & chosen[1] & chosen[2] & present)
        return result

    return Operation(results=(type_,), sources=(type_, type_, type_, "u32"), compute=compute)


@declare("popc", "clz", "brev")
def _(opcode: Opcode) -> Operation:
    type_ = opcode.type_of(("b32", "b64"))
    width = 8 * dtype_of(type_).itemsize
    if opcode.root == "brev":
        return Operation(results=(type_,), sources=(type_,), compute=lambda a: _reversed(a, width))
    count = _ones if opcode.root == "popc" else lambda a: np.uint32(width) - _length(a)
    return Operation(results=("u32",), sources=(type_,), compute=count)


@declare("bfind", modifiers="shiftamt")
def _(opcode: Opcode) -> Operation:
    """Position of the highest bit that is not the sign; all ones where there is none."""
    type_ = opcode.type_of(("u32", "u64", "s32", "s64"))
    width = 8 * dtype_of(type_).itemsize

    def compute(a: Array) -> Array:
        if type_.startswith("s"):
            a = np.where(a < 0, ~a, a)
        length = _length(a.view(dtype_of(f"b{width}")))
        position = np.uint32(width) - length if opcode.has("shiftamt") else length - np.uint32(1)
        return np.where(length == 0, np.uint32(0xFFFFFFFF), position)

    return Operation(results=("u32",), sources=(type_,), compute=compute)


@declare("bfe")
def _(opcode: Opcode) -> Operation:
    """Bits from a position on, as many as asked for; a signed field is filled up with its highest bit."""
    type_ = opcode.type_of(("u32", "u64", "s32", "s64"))
    width = 8 * dtype_of(type_).itemsize

    def compute(a: Array, start: Array, length: Array) -> Array:
        start, length = start & np.uint32(0xFF), length & np.uint32(0xFF)
        bits = a.view(dtype_of(f"b{width}"))
        unit = bits.dtype.type(1)
        field = np.where(start >= width, bits.dtype.type(0), bits >> _inside(start, width).astype(bits.dtype))
        mask = np.where(
            length >= width, ~bits.dtype.type(0), (unit << _inside(length, width).astype(bits.dtype)) - unit
        )
        field &= mask
        if type_.startswith("s"):
            last = np.minimum(start + length - np.uint32(1), np.uint32(width - 1)).astype(bits.dtype)
            negative = ((bits >> last) & unit != 0) & (length != 0)
            # Bits that are not there, above the field or above the number, are those of the sign.
            there = np.where(
                start >= width, bits.dtype.type(0), ~bits.dtype.type(0) >> _inside(start, width).astype(bits.dtype)
            )
            field = np.where(negative, field | ~(mask & there), field)
        return field.view(dtype_of(type_))

    return Operation(results=(type_,), sources=(type_, "u32", "u32"), compute=compute)


@declare("bfi")
def _(opcode: Opcode) -> Operation:
    """Low bits of a put into b from a position on."""
    type_ = opcode.type_of(("b32", "b64"))
    width = 8 * dtype_of(type_).itemsize

    def compute(a: Array, b: Array, start: Array, length: Array) -> Array:
        start, length = start & np.uint32(0xFF), length & np.uint32(0xFF)
        unit, zero = a.dtype.type(1), a.dtype.type(0)
        mask = np.where(length >= width, ~zero, (unit << _inside(length, width).astype(a.dtype)) - unit)
        shift = _inside(start, width).astype(a.dtype)
        mask = np.where(start >= width, zero, mask << shift)
        return (b & ~mask) | ((a << shift) & mask)

    return Operation(results=(type_,), sources=(type_, type_, "u32", "u32"), compute=compute)


@declare("prmt")
def _(opcode: Opcode) -> Operation:
    """Four bytes picked out of the eight of b:a; a selector with its highest bit set spreads the byte's sign."""
    type_ = opcode.type_of(("b32",))

    def compute(a: Array, b: Array, selectors: Array) -> Array:
        source = a.astype(np.uint64) | (b.astype(np.uint64) << np.uint64(32))
        result = np.zeros(1, np.uint32)
        for at in range(4):
            selector = (selectors >> np.uint32(4 * at)) & np.uint32(0xF)
            byte = (source >> ((selector & np.uint32(7)) * np.uint32(8)).astype(np.uint64)).astype(
                np.uint32
            ) & np.uint32(0xFF)
            sign = np.where(byte >= 0x80, np.uint32(0xFF), np.uint32(0))
            result = result | (np.where(selector >= 8, sign, byte) << np.uint32(8 * at))
        return result

    return Operation(results=(type_,), sources=(type_, type_, type_), compute=compute)


def _inside(amount: Array, width: int) -> Array:
    return np.minimum(amount, amount.dtype.type(width - 1))


def _ones(a: Array) -> Array:
    octets = np.ascontiguousarray(a).view(np.uint8).reshape(a.size, -1)
    return np.unpackbits(octets, axis=1).sum(axis=1, dtype=np.uint32)


def _length(a: Array) -> Array:
    """Bits up to the highest that is set."""
    for shift in (1, 2, 4, 8, 16, 32):
        if shift < 8 * a.dtype.itemsize:
            a = a | (a >> a.dtype.type(shift))
    return _ones(a)


def _reversed(a: Array, width: int) -> Array:
    result = np.zeros_like(a)
    unit = a.dtype.type(1)
    for at in range(width):
        result |= ((a >> a.dtype.type(at)) & unit) << a.dtype.type(width - 1 - at)
    return result
