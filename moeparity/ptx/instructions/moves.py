"""Moves between registers, halves of registers and address spaces."""

from __future__ import annotations

from typing import Any

import numpy as np

from moeparity.ptx.formats import Array, dtype_of
from moeparity.ptx.spaces import MATE, WINDOWS, inside
from moeparity.ptx.table import Opcode, Operation, declare
from moeparity.ptx.threads import Lanes

_TYPES = (*(f"{kind}{bits}" for kind in "bus" for bits in (16, 32, 64)), "f32", "f64", "pred")
_SPACES = "global shared local const param shared::cta shared::cluster"


@declare("mov")
def _(opcode: Opcode) -> Operation:
    """Also takes a register apart into a vector of narrower ones, or puts it together; the first is the lowest."""
    type_ = opcode.type_of(_TYPES)
    if opcode.vector == 1:
        return Operation(results=(type_,), sources=(type_,), compute=lambda a: a)
    count, width = opcode.vector, 8 * dtype_of(type_).itemsize
    part, whole = f"b{width // count}", f"b{width}"
    if width // count not in {8, 16, 32}:
        raise opcode.unknown(f"{count} parts of {width} bits")
    if opcode.has_group:
        return Operation(results=(part,) * count, sources=(whole,), compute=lambda a: _apart(a, count, part))
    return Operation(results=(whole,), sources=(part,) * count, compute=lambda *parts: _together(parts, whole))


def _apart(a: Array, count: int, part: str) -> tuple[Array, ...]:
    width = 8 * a.dtype.itemsize // count
    return tuple((a >> a.dtype.type(at * width)).astype(dtype_of(part)) for at in range(count))


def _together(parts: tuple[Array, ...], whole: str) -> Array:
    dtype = dtype_of(whole)
    width = 8 * dtype.itemsize // len(parts)
    result: Any = np.zeros(1, dtype)
    for at, part in enumerate(parts):
        result = result | (part.astype(dtype) << dtype.type(at * width))
    return np.asarray(result)


@declare("cvta", modifiers=f"to {_SPACES}")
def _(opcode: Opcode) -> Operation:
    """To a generic address from one of a space, or back."""
    type_ = opcode.type_of(("u64",))
    window = WINDOWS[_space(opcode)]
    sign = -1 if opcode.has("to") else 1
    moved = np.array([sign * window], dtype=np.int64).view(np.uint64)
    return Operation(results=(type_,), sources=(type_,), compute=lambda a: a + moved)


@declare("isspacep", modifiers=_SPACES)
def _(opcode: Opcode) -> Operation:
    space = _space(opcode)
    return Operation(results=("pred",), sources=("u64",), compute=lambda a: inside(a, space))


@declare("mapa", modifiers="shared::cluster")
def _(opcode: Opcode) -> Operation:
    """The address of another block of the cluster for the same place of its shared memory."""
    type_ = opcode.type_of(("u32", "u64"))
    bits = dtype_of(type_).type

    def compute(address: Array, rank: Array) -> Array:
        return (address & ~bits(255 << MATE)) | ((rank.astype(dtype_of(type_)) + bits(1)) << bits(MATE))

    return Operation(results=(type_,), sources=(type_, "u32"), compute=compute)


@declare("getctarank", modifiers="shared::cluster")
def _(opcode: Opcode) -> Operation:
    """Which block of the cluster a shared address is of."""
    type_ = opcode.type_of(("u32", "u64"))

    def compute(lanes: Lanes, address: Array) -> Array:
        number = (address.astype(np.int64) >> MATE) & 255
        return np.asarray(lanes.mate(number) % lanes.machine.shape.mates, np.uint32)

    return Operation(results=("u32",), sources=(type_,), compute=compute, lanes=True)


def _space(opcode: Opcode) -> str:
    return opcode.one_of(tuple(_SPACES.split())).split("::")[0]
