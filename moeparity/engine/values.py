"""Values and their identities: two tensors are the same value when every bit is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from moeparity.engine.batches import Rows, inside
from moeparity.numerics.bits import int_view, same_bits


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """A value of one micro-batch: the tensor, its rows, and the identity of each cell inside it.

    `partials`: in how many partial sums the value lies, along the axis behind the batch (1: there is no such axis).
    """

    tensor: torch.Tensor
    rows: Rows
    ids: tuple[int, ...]
    partials: int = 1

    @property
    def layout(self) -> tuple[object, ...]:
        """What else native kernels may depend on: strides, and the address modulo a cache line."""
        return (self.tensor.stride(), self.tensor.data_ptr() % 64)


class Identities:
    """Gives every cell of one output port a number, the same for the same bits."""

    def __init__(self, cells: Sequence[Rows]) -> None:
        self._cells = cells
        self._values: dict[tuple[Rows, torch.dtype], list[tuple[int, torch.Tensor]]] = {}
        self._counts: Counter[Rows] = Counter()
        self._blocks: dict[tuple[object, ...], Block] = {}

    def block(self, tensor: torch.Tensor, rows: Rows, partials: int = 1) -> Block:
        """The tensor of the sequences in `rows` with its identities; an equal block made before is returned instead."""
        # Read as integers once: a cell is compared with all that differ from it.
        bits = int_view(tensor)
        ids = tuple(self._identity(cell, tensor.dtype, cut(bits, cell, rows)) for cell in inside(self._cells, rows))
        block = Block(tensor, rows, ids, partials)
        return self._blocks.setdefault((rows, ids, block.layout), block)

    def _identity(self, cell: Rows, dtype: torch.dtype, bits: torch.Tensor) -> int:
        values = self._values.setdefault((cell, dtype), [])
        for identity, other in values:
            if same_bits(other, bits):
                return identity
        values.append((self._counts[cell], bits))
        self._counts[cell] += 1
        return values[-1][0]


def cut(tensor: torch.Tensor, cell: Rows, rows: Rows) -> torch.Tensor:
    """The sequences in `cell` of a tensor that holds those in `rows`."""
    return tensor if cell == rows else tensor[cell[0] - rows[0] : cell[1] - rows[0]]


def assemble(blocks: Sequence[Block], rows: Rows) -> torch.Tensor:
    """The sequences in `rows`, put together from blocks cut otherwise; the block's own tensor where they agree.

    A new tensor is laid out as that micro-batch's own would be: the same order of strides, freshly allocated.
    """
    for block in blocks:
        if block.rows == rows:
            return block.tensor
    parts = [
        cut(block.tensor, (max(rows[0], block.rows[0]), min(rows[1], block.rows[1])), block.rows)
        for block in blocks
        if block.rows[0] < rows[1] and rows[0] < block.rows[1]
    ]
    axes = range(1, parts[0].dim())
    strides = parts[0].stride()
    by_stride = sorted(axes, key=lambda axis: -strides[axis])
    joined = torch.cat([part.permute(0, *by_stride).contiguous() for part in parts])
    return joined.permute(0, *(by_stride.index(axis) + 1 for axis in axes))
