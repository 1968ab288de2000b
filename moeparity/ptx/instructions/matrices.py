"""`ldmatrix` and `stmatrix` move eight rows of eight 16-bit numbers between shared memory and the registers of a warp.

They move bits only. They are made for tensor cores but used without them too: Triton changes the layout of a tile by
them. Thread t gives the address of row t % 8 of matrix t // 8. Of each matrix it has in one register the numbers 2 (t %
4) and the next of row t // 4; with `.trans`, those of the transpose.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from moeparity.ptx.formats import Array
from moeparity.ptx.spaces import view
from moeparity.ptx.special import WARP
from moeparity.ptx.table import Opcode, Operation, Sync, declare
from moeparity.ptx.threads import Lanes

_COUNTS = {"x1": 1, "x2": 2, "x4": 4}
_ROWS = 8
_MODIFIERS = "sync aligned m8n8 x1 x2 x4 trans shared shared::cta"


def _count(opcode: Opcode) -> int:
    opcode.type_of(("b16",))
    if not {"sync", "aligned", "m8n8"} <= opcode.modifiers:
        raise opcode.unknown("matrices of `.m8n8` are built, by whole warps (`.sync.aligned`)")
    return _COUNTS[opcode.one_of(tuple(_COUNTS))]


def _places(lanes: Lanes, address: Array, count: int, *, transposed: bool) -> list[tuple[Array, Array]]:
    """Of each matrix, where the two numbers of a thread's register lie among 16-bit numbers."""
    lane = lanes.index % WARP
    givers = np.flatnonzero(lane < _ROWS * count)
    rows = np.zeros(lanes.machine.lanes, np.int64)
    addresses = np.broadcast_to(address, lanes.index.shape)[givers]
    rows[lanes.index[givers]] = lanes.machine.memory.positions("shared", addresses, lanes.some(givers), 2 * _ROWS) // 2
    outer, inner = lane // 4, lane % 4 * 2
    warp = lanes.index - lane

    def at(matrix: int, half: int) -> Array:
        row, column = (inner + half, outer) if transposed else (outer, inner + half)
        return rows[warp + _ROWS * matrix + row] + column

    return [(at(matrix, 0), at(matrix, 1)) for matrix in range(count)]


@declare("ldmatrix", modifiers=_MODIFIERS)
def _(opcode: Opcode) -> Operation:
    count, transposed = _count(opcode), opcode.has("trans")

    def compute(lanes: Lanes, address: Array) -> Any:
        numbers = view(lanes.machine.memory.octets, np.dtype(np.uint16))
        places = _places(lanes, address, count, transposed=transposed)
        parts = tuple(numbers[low].astype(np.uint32) | numbers[high].astype(np.uint32) << 16 for low, high in places)
        return parts if count > 1 else parts[0]

    return Operation(
        results=("b32",) * count,
        sources=("address",),
        compute=compute,
        lanes=True,
        sync=Sync.WARP,
        memory=True,
        whole=True,
    )


@declare("stmatrix", modifiers=_MODIFIERS)
def _(opcode: Opcode) -> Operation:
    count, transposed = _count(opcode), opcode.has("trans")

    def compute(lanes: Lanes, address: Array, *values: Array) -> None:
        numbers = view(lanes.machine.memory.octets, np.dtype(np.uint16))
        places = _places(lanes, address, count, transposed=transposed)
        for (low, high), value in zip(places, values, strict=True):
            whole = np.broadcast_to(value, lanes.index.shape).astype(np.uint32)
            numbers[low], numbers[high] = (whole & 0xFFFF).astype(np.uint16), (whole >> 16).astype(np.uint16)

    sources = ("address", *("b32",) * count)
    return Operation(results=(), sources=sources, compute=compute, lanes=True, sync=Sync.WARP, memory=True, whole=True)
