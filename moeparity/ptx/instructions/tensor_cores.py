"""`mma` of fp16 and bf16 with fp32 results: the matrix products of one warp, with the bits of the file's architecture.

Layouts of fragments are the PTX ISA's ("Matrix Fragments for mma.m16n8k16"). The arithmetic is that of
`numerics/tensor_core`.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import torch

from moeparity.numerics.tensor_core.instructions import Instruction, instruction
from moeparity.numerics.tensor_core.product import multiply_add
from moeparity.ptx.formats import Array
from moeparity.ptx.special import WARP
from moeparity.ptx.table import Opcode, Operation, Sync, declare
from moeparity.ptx.threads import Lanes

_SHAPES = {"m16n8k16": 16, "m16n8k8": 8}
_INPUTS = {"f16": ("fp16", torch.float16), "bf16": ("bf16", torch.bfloat16)}
_LANE = np.arange(WARP)
ROW, PAIR = _LANE // 4, _LANE % 4 * 2


@declare("mma", modifiers="sync aligned row col m16n8k16 m16n8k8")
def _(opcode: Opcode) -> Operation:
    k = _SHAPES[opcode.one_of(tuple(_SHAPES))]
    if len(opcode.types) != 4 or opcode.types[0] != "f32" or opcode.types[3] != "f32":
        raise opcode.unknown("of its types `.f32.f16.f16.f32` and `.f32.bf16.bf16.f32` are built")
    format_ = opcode.types[1]
    if format_ not in _INPUTS or opcode.types[2] != format_:
        raise opcode.unknown(f"factors known: {', '.join(_INPUTS)}")
    arithmetic = arithmetic_of(opcode, _INPUTS[format_][0], "mma")
    words = k // 4

    def compute(lanes: Lanes, *registers: Array) -> Any:
        warps = np.unique(lanes.index // WARP)
        values = [by_warp(lanes, value, warps) for value in registers]
        a = halves(values[:words], np.zeros((warps.size, 16, k), np.uint16), a_places(k), (0, 1))
        b = halves(values[words : words + k // 8], np.zeros((warps.size, k, 8), np.uint16), _b_places(k), (1, 0))
        c = np.zeros((warps.size, 16, 8), np.float32)
        for (rows, columns), value in zip(_c_places(), values[words + k // 8 :], strict=True):
            c[:, rows, columns] = value
        d = product(arithmetic, a, b, c, _INPUTS[format_][1])
        at = np.searchsorted(warps, lanes.index // WARP), lanes.index % WARP
        return tuple(d[:, rows, columns][at] for rows, columns in _c_places())

    sources = ("b32",) * (words + k // 8) + ("f32",) * 4
    return Operation(
        results=("f32",) * 4, sources=sources, compute=compute, lanes=True, sync=Sync.WARP, whole=True
    )  # fmt: skip


def arithmetic_of(opcode: Opcode, format_: str, unit: str) -> Instruction:
    """That of the file's architecture for factors of a format. Raises UnknownInstruction."""
    try:
        return instruction(re.sub(r"[a-z]+$", "", opcode.target), format_, unit=unit)
    except ValueError as error:
        raise opcode.unknown(str(error).removesuffix(".")) from None


def by_warp(lanes: Lanes, value: Array, warps: Array) -> Array:
    """Of each warp's 32 threads [warps, 32]."""
    everybody = np.zeros(lanes.machine.lanes, value.dtype)
    everybody[lanes.index] = value
    return np.asarray(everybody.reshape(-1, WARP)[warps])


def a_places(k: int) -> list[tuple[Array, Array]]:
    """Of each register, row and column of its lower number in a [16, k]; the upper one is in the next column."""
    return [(ROW + 8 * (register % 2), PAIR + 8 * (register // 2)) for register in range(k // 4)]


def _b_places(k: int) -> list[tuple[Array, Array]]:
    """Of each register, row and column of its lower number in b [k, 8]; the upper one is in the next row."""
    return [(PAIR + 8 * register, ROW) for register in range(k // 8)]


def _c_places() -> list[tuple[Array, Array]]:
    """Of each register, row and column in c [16, 8]."""
    return [(ROW + 8 * (register // 2), PAIR + register % 2) for register in range(4)]


def halves(values: list[Array], numbers: Array, places: list[tuple[Array, Array]], step: tuple[int, int]) -> Array:
    """Enters into numbers [warps, rows, columns] the two of each register, the upper one a step further."""
    for (rows, columns), value in zip(places, values, strict=True):
        numbers[:, rows, columns] = value & 0xFFFF
        numbers[:, rows + step[0], columns + step[1]] = value >> 16
    return numbers


def product(arithmetic: Instruction, a: Array, b: Array, c: Array, dtype: torch.dtype) -> Array:
    """c + a @ b of bits [warps, M, K] and [warps, K, N]."""
    left, right = (torch.from_numpy(np.ascontiguousarray(x)).view(dtype) for x in (a, b))
    # A step that takes more products than the instruction has adds zeros.
    missing = -left.shape[-1] % arithmetic.span
    left = torch.nn.functional.pad(left, (0, missing))
    right = torch.nn.functional.pad(right, (0, 0, 0, missing))
    return np.asarray(multiply_add(arithmetic, left, right, torch.from_numpy(c)).numpy())
