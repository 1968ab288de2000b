"""Dot products of small whole numbers, packed into registers of 32 bits."""

from __future__ import annotations

import numpy as np

from moeparity.ptx.formats import Array, dtype_of
from moeparity.ptx.table import Opcode, Operation, declare

FACTORS = 2
"""Types that the name has: those of its two factors."""


@declare("dp2a", modifiers="lo hi")
def _(opcode: Opcode) -> Operation:
    """Two numbers of 16 bits times two of 8, the lower or the upper ones of b, and c."""
    if len(opcode.types) != FACTORS or any(type_ not in {"u32", "s32"} for type_ in opcode.types):
        raise opcode.unknown("types known: u32, s32 of either operand")
    first = 2 if opcode.one_of(("lo", "hi")) == "hi" else 0
    words, octets = (dtype_of(f"{type_[0]}{bits}") for type_, bits in zip(opcode.types, (16, 8), strict=True))
    result = "s32" if "s32" in opcode.types else "u32"

    def compute(a: Array, b: Array, c: Array) -> Array:
        of_a = np.ascontiguousarray(a).view(words).reshape(-1, 2).astype(np.int64)
        of_b = np.ascontiguousarray(b).view(octets).reshape(-1, 4)[:, first : first + 2].astype(np.int64)
        return ((of_a * of_b).sum(-1) + c.astype(np.int64)).astype(c.dtype)

    return Operation(results=(result,), sources=(*opcode.types, result), compute=compute)
