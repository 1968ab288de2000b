"""`wgmma` of 16- and 8-bit numbers with fp32 results: matrix products of a warp group, with the bits of the file's GPU.

b, and a unless it stands in registers, lie in shared memory where descriptors say: PTX ISA, "Asynchronous warpgroup
level matrix"; how tiles are swizzled was read in CUTLASS 3.8, cute/arch/mma_sm90_desc.hpp. A product is computed at
once, warp by warp: each has 16 of the 64 rows. Waiting for it then changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from moeparity.ptx.formats import Array
from moeparity.ptx.instructions.memory import nothing
from moeparity.ptx.instructions.tensor_cores import PAIR, ROW, a_places, arithmetic_of, by_warp, halves, product
from moeparity.ptx.spaces import view
from moeparity.ptx.special import WARP
from moeparity.ptx.syntax import Group, Immediate
from moeparity.ptx.table import Opcode, Operation, Sync, declare
from moeparity.ptx.threads import Lanes

_SIZES = {f"m64n{n}k{k}": (n, k) for n in range(8, 257, 8) for k in (16, 32)}
_INPUTS = {
    "f16": ("fp16", torch.float16),
    "bf16": ("bf16", torch.bfloat16),
    "e4m3": ("fp8_e4m3", torch.float8_e4m3fn),
    "e5m2": ("fp8_e5m2", torch.float8_e5m2),
}
_CHUNK = 16
"""Bytes that lie together, however a tile is swizzled."""
_ROWS = 8
"""Rows of a core matrix."""
_SWIZZLED = {0: 1, 1: 8, 2: 4, 3: 2}
"""Mode of a descriptor -> chunks of a row, which change places with each other."""


@declare("wgmma", modifiers=f"fence commit_group wait_group mma_async sync aligned {' '.join(_SIZES)}")
def _(opcode: Opcode) -> Operation:
    if not opcode.has("mma_async"):
        return nothing(Sync.NOBODY)
    columns, k = _SIZES[opcode.one_of(tuple(_SIZES))]
    format_, size = _format(opcode, k)
    arithmetic = arithmetic_of(opcode, _INPUTS[format_][0], "wgmma")
    in_registers = isinstance(opcode.statement.operands[1], Group)
    transposed = _transposed(opcode, 16 // k, in_registers=in_registers)
    words = 4 if in_registers else 1
    if in_registers and size == 1:
        raise opcode.unknown("8-bit numbers of a are read from shared memory only")

    def compute(lanes: Lanes, *values: Array) -> Any:
        warps = np.unique(lanes.index // WARP)
        by_registers = [by_warp(lanes, value, warps) for value in values[: columns // 2 + words + 2]]
        into, a_values = by_registers[: columns // 2], by_registers[columns // 2 : -2]
        b_places, adds = _Tile.of(by_registers[-2], size), by_registers[-1][:, :1, None]
        if in_registers:
            a = halves(a_values, np.zeros((warps.size, 16, k), np.uint16), a_places(k), (0, 1))
        else:
            rows = (warps % 4 * 16)[:, None, None] + np.arange(16)[:, None]
            a = _read(lanes, warps, _Tile.of(a_values[0], size), rows, np.arange(k), along_k=not transposed[0])
        b = _read(lanes, warps, b_places, np.arange(columns), np.arange(k)[:, None], along_k=not transposed[1])
        c = np.zeros((warps.size, 16, columns), np.float32)
        for (row, column), value in zip(_c_places(columns), into, strict=True):
            c[:, row, column] = value
        d = product(arithmetic, a, b, np.where(adds, c, np.float32(0)), _INPUTS[format_][1])
        at = np.searchsorted(warps, lanes.index // WARP), lanes.index % WARP
        return tuple(d[:, row, column][at] for row, column in _c_places(columns))

    immediates = ("u32",) * (len(opcode.statement.operands) - 4)
    sources = (*("b32" if in_registers else "b64",) * words, "b64", "pred", *immediates)
    return Operation(
        results=("f32",) * (columns // 2),
        updated=columns // 2,
        sources=sources,
        compute=compute,
        lanes=True,
        sync=Sync.WARP,
        memory=True,
        whole=True,
    )


def _format(opcode: Opcode, k: int) -> tuple[str, int]:
    """The factors' type, and its bytes."""
    if len(opcode.types) != 3 or opcode.types[0] != "f32" or opcode.types[1] != opcode.types[2]:
        raise opcode.unknown("products of two factors of one type with a result of `.f32` are built")
    if opcode.types[1] not in _INPUTS:
        raise opcode.unknown(f"factors known: {', '.join(_INPUTS)}")
    size = _INPUTS[opcode.types[1]][1].itemsize
    if size * k != 2 * _CHUNK:
        raise opcode.unknown(f"a step has {2 * _CHUNK // size} products")
    return opcode.types[1], size


def _transposed(opcode: Opcode, expected: int, *, in_registers: bool) -> tuple[bool, bool]:
    """Whether a and b have K as the outer axis: the last operands, behind the signs of both factors."""
    numbers = [part.value for part in opcode.statement.operands[4:] if isinstance(part, Immediate)]
    flags = numbers[2:]
    if numbers[:2] != [1, 1] or len(flags) != expected * (1 if in_registers else 2):
        raise opcode.unknown("factors with a sign of 1, and one flag for each matrix of 16-bit numbers, are built")
    a, b = (False, *map(bool, flags)) if in_registers else map(bool, flags or (0, 0))
    return a, b


@dataclass(frozen=True)
class _Tile:
    """A matrix in shared memory, as a descriptor says: fields [warps, 1, 1] in bytes; `size` of a number."""

    start: Array
    leading: Array
    stride: Array
    chunks: Array
    size: int

    @classmethod
    def of(cls, descriptors: Array, size: int) -> _Tile:
        """By the descriptors of each warp's threads [warps, 32], which are one."""
        fields = descriptors[:, :1, None].astype(np.uint64).view(np.int64)
        start, leading, stride = ((fields >> shift & 0x3FFF) << 4 for shift in (0, 16, 32))
        chunks = np.array([_SWIZZLED[mode] for mode in range(4)])[fields >> 62 & 3]
        return cls(start, leading, stride, chunks, size)

    def addresses(self, outer: Array, k: Array, *, along_k: bool) -> Array:
        """Of numbers at places of M or N and of K; `along_k`: neighbours in K lie together."""
        width = self.chunks * _CHUNK
        if along_k:
            inside = k * self.size
            row, chunk, group = outer % _ROWS * width, inside // _CHUNK, outer // _ROWS * self.stride
            # Rows without a swizzle are core matrices of one chunk, of which the next in K lies elsewhere.
            place = group + row + np.where(self.chunks == 1, chunk * self.leading, chunk * _CHUNK)
        else:
            inside = outer * self.size
            plain = self.chunks == 1
            across, steps = inside // width, k // _ROWS
            place = k % _ROWS * width + inside % width // _CHUNK * _CHUNK
            place = place + np.where(plain, across * self.stride, across * self.leading)
            place = place + np.where(plain, steps * self.leading, steps * self.stride)
        address = self.start + place
        return (address ^ (address // 128 % self.chunks * _CHUNK)) + inside % _CHUNK


def _read(lanes: Lanes, warps: Array, tile: _Tile, outer: Array, k: Array, *, along_k: bool) -> Array:
    """Bits [warps, ...] of a tile's numbers, in the shape that `outer` and `k` have together."""
    addresses = tile.addresses(outer, k, along_k=along_k)
    first = np.searchsorted(lanes.index // WARP, warps)
    readers = lanes.some(np.repeat(first, addresses[0].size))
    places = lanes.machine.memory.positions("shared", addresses.reshape(-1).astype(np.uint64), readers, tile.size)
    numbers = view(lanes.machine.memory.octets, np.dtype(f"u{tile.size}"))[places // tile.size]
    return np.asarray(numbers.reshape(addresses.shape))


def _c_places(columns: int) -> list[tuple[Array, Array]]:
    """Of each register, row and column in a warp's c [16, columns]."""
    return [(ROW + 8 * (i % 4 // 2), PAIR + 8 * (i // 4) + i % 2) for i in range(columns // 2)]
