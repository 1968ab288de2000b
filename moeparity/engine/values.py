"""Values and their identities: two tensors are the same value when every bit is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce

import numpy as np
import numpy.typing as npt
import torch

from moeparity.engine.batch import Batch, odd_numbers
from moeparity.numerics.bits import int_view

IntArray = npt.NDArray[np.int64]

FEW = 2
"""Up to this many tensors are compared directly. Of more, only those are whose fingerprints agree in some cell."""

NARROW = 64
"""Up to this many cells are looked up one by one."""

PAIRS = 4096
"""For up to this many other batches, a batch keeps which tokens it shares with them."""

WORDS = 1 << 16
"""On a GPU, fingerprints are taken of this many words of a tensor at once."""


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """A value for the tokens of a batch: the tensor, and an identity for each cell of the batch.

    partials: how many partial sums the value consists of, along the axis after the sequences (1: there is no such
        axis).
    axis: the axis of the tokens; the first axis is that of the sequences.
    """

    tensor: torch.Tensor
    batch: Batch
    ids: tuple[int, ...]
    partials: int = 1
    axis: int = 1

    @property
    def layout(self) -> tuple[object, ...]:
        """What else native kernels may depend on: strides, and the address modulo a cache line."""
        return (self.tensor.stride(), self.tensor.data_ptr() % 64)


class _Bits:
    """The bits of a batch's tensor, as integers and by token. They are only read in that way if needed, and once."""

    def __init__(self, tensor: torch.Tensor, batch: Batch, axis: int) -> None:
        self.tensor, self.batch, self.axis = tensor, batch, axis
        self.kind = (tensor.dtype, axis, tensor.shape[1:axis], tensor.shape[axis + 1 :])

    @cached_property
    def bits(self) -> torch.Tensor:
        """The tensor as integers, in its own layout."""
        return int_view(self.tensor)

    @cached_property
    def by_token(self) -> torch.Tensor:
        """One row for each token, in integers as wide as its bytes allow: [n, words]."""
        bits = self.bits.movedim(self.axis, 1)
        rows = bits.flatten(0, 1).flatten(1) if bits.dim() > 2 else bits.reshape(-1, 1)
        if rows.shape[1] * rows.itemsize % 8:
            return rows
        aligned = rows.is_contiguous() and rows.storage_offset() * rows.itemsize % 8 == 0
        return (rows if aligned else rows.clone(memory_format=torch.contiguous_format)).view(torch.int64)

    @cached_property
    def prints(self) -> Mapping[int, int]:
        """A number for each cell: equal for equal bits, and hardly ever equal for others."""
        batch = self.batch
        # Products and sums of integers wrap around, so their order does not matter.
        placed = _of_rows(self.by_token).cpu() * batch.factors
        of_cell = placed.new_zeros(len(batch.cells)).index_add_(0, batch.cell_of, placed)
        return dict(zip(batch.cells, of_cell.tolist(), strict=True))


def _of_rows(rows: torch.Tensor) -> torch.Tensor:
    """A number for each row [n, words] of integers, int64 [n]."""
    factors = odd_numbers(rows.shape[1], rows.device)
    if rows.device.type == "cpu":
        return torch.mv(rows.long(), factors)
    # torch has no product of integer matrices on GPUs.
    parts = torch.split(rows, max(1, WORDS // max(1, rows.shape[1])))
    return torch.cat([(part * factors).sum(-1) for part in parts])


@dataclass(frozen=True, slots=True, eq=False)
class _Numbered:
    """What is new in the cells `fresh`, and the identities, int64, of all cells of its batch."""

    bits: _Bits
    numbers: IntArray
    fresh: frozenset[int]


class Identities:
    """Gives identities to the cells of one output port: equal numbers for equal bits; if it does not compare, each
    tensor gets new ones.
    """

    def __init__(self, *, compares: bool = True) -> None:
        self._compares = compares
        # Blocks with something new: by cell if they have few cells, else in one list.
        self._by_cell: dict[int, list[_Numbered]] = {}
        self._narrow: list[_Numbered] = []
        self._wide: list[_Numbered] = []
        # By a new cell and its fingerprint; filled when fingerprints are first needed, with those that wait for it.
        self._by_print: dict[tuple[int, int], list[_Numbered]] = {}
        self._waiting: list[_Numbered] = []
        self._next: IntArray = np.zeros(0, dtype=np.int64)
        self._same: dict[tuple[object, ...], Block] = {}

    def block(self, tensor: torch.Tensor, batch: Batch, axis: int = 1, partials: int = 1) -> Block:
        """The tensor with its identities; if an equal block was made before, that one is returned."""
        bits = _Bits(tensor, batch, axis)
        ids = np.full(len(batch.cells), -1, dtype=np.int64)
        for met_value in self._met(bits) if self._compares else ():
            _take_equal(ids, bits, met_value)
            if ids.min() >= 0:
                break
        is_fresh = ids < 0
        if is_fresh.any():
            self._number(ids, is_fresh, bits)
        numbers = tuple(ids.tolist())
        block = Block(tensor, batch, numbers, partials, axis)
        return self._same.setdefault((batch, numbers, block.layout), block)

    def _number(self, ids: IntArray, is_fresh: npt.NDArray[np.bool_], bits: _Bits) -> None:
        """Gives the fresh cells the next free numbers, and keeps the tensor for later comparisons."""
        cells = bits.batch.cell_array[is_fresh]
        if cells[-1] >= len(self._next):
            self._next = np.concatenate([self._next, np.zeros(int(cells[-1]) + 1 - len(self._next), dtype=np.int64)])
        ids[is_fresh] = self._next[cells]
        self._next[cells] += 1
        if not self._compares:
            return
        numbered = _Numbered(bits, ids.copy(), frozenset(cells.tolist()))
        self._waiting.append(numbered)
        if len(cells) > NARROW:
            self._wide.append(numbered)
            return
        self._narrow.append(numbered)
        for cell in numbered.fresh:
            self._by_cell.setdefault(cell, []).append(numbered)

    def _met(self, bits: _Bits) -> list[_Numbered]:
        """Earlier blocks of the same kind in the same cells, those of the same batch first. If there are many, only
        those that may have the same bits in some cell.
        """
        cells = bits.batch.cell_array
        # As many blocks have something new in a cell as it has numbers.
        are_many = self._next[cells[cells < len(self._next)]].max(initial=0) > FEW
        met = [] if are_many else self._in_same_cells(bits)
        if are_many or len(met) > FEW:
            met = self._of_same_prints(bits)
        return sorted(met, key=lambda numbered: numbered.bits.batch is not bits.batch)

    def _in_same_cells(self, bits: _Bits) -> list[_Numbered]:
        batch = bits.batch
        if len(batch.cells) > NARROW:
            every = [numbered for numbered in self._narrow if not batch.cell_set.isdisjoint(numbered.fresh)]
        else:
            there = (numbered for cell in batch.cells for numbered in self._by_cell.get(cell, ()))
            every = list({id(numbered): numbered for numbered in there}.values())
        every += [numbered for numbered in self._wide if not batch.cell_set.isdisjoint(numbered.fresh)]
        return [numbered for numbered in every if numbered.bits.kind == bits.kind]

    def _of_same_prints(self, bits: _Bits) -> list[_Numbered]:
        for numbered in self._waiting:
            for cell in numbered.fresh:
                self._by_print.setdefault((cell, numbered.bits.prints[cell]), []).append(numbered)
        self._waiting.clear()
        there = (numbered for item in bits.prints.items() for numbered in self._by_print.get(item, ()))
        return [each for each in {id(numbered): numbered for numbered in there}.values() if each.bits.kind == bits.kind]


def _take_equal(ids: IntArray, bits: _Bits, numbered: _Numbered) -> None:
    """Fill in the identities of the cells in which both have the same bits."""
    batch, theirs_bits = bits.batch, numbered.bits
    if batch is theirs_bits.batch:
        if torch.equal(bits.bits, theirs_bits.bits):
            np.copyto(ids, numbered.numbers, where=ids < 0)
            return
        if len(ids) == 1:
            return
        ours, theirs, places = bits.by_token, theirs_bits.by_token, batch.cell_of
    else:
        mine, its = common(batch, theirs_bits.batch)
        ours, theirs = bits.by_token[mine.to(bits.bits.device)], theirs_bits.by_token[its.to(theirs_bits.bits.device)]
        places = batch.cell_of[mine]
    differs = (ours != theirs).any(-1).cpu().numpy()
    takes = np.zeros(len(ids), dtype=np.bool_)
    takes[places.numpy()] = True
    takes[places.numpy()[differs]] = False
    takes &= ids < 0
    ids[takes] = numbered.numbers[np.searchsorted(theirs_bits.batch.cell_array, batch.cell_array[takes])]


def common(a: Batch, b: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """The tokens that both batches have, as their places in each. These are whole cells, since no batch cuts one."""
    if b not in a.common:
        if len(a.common) >= PAIRS:
            a.common.clear()
        a.common[b] = _common(a, b)
    return a.common[b]


def _common(a: Batch, b: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    in_b = torch.full((a.grid.sequences * a.grid.length,), -1, dtype=torch.int64)
    in_b[b.index] = torch.arange(len(b.index))
    places = in_b[a.index]
    ours = (places >= 0).nonzero().squeeze(-1)
    return ours, places[ours]


def reblocked(blocks: Sequence[Block], batch: Batch, *, view: bool = False) -> Block:
    """The value of exactly these tokens, put together from blocks that are cut in another way; the block itself if it
    is there. With `view`, a view of one block's tensor is enough if the tokens are a part of its rectangle.
    """
    for block in blocks:
        if block.batch is batch:
            return block
    first = blocks[0]
    if len(blocks) == 1:
        place_of = first.batch.place_of
        ids = tuple([first.ids[place_of[cell]] for cell in batch.cells])
    else:
        identity = {cell: number for block in blocks for cell, number in zip(block.batch.cells, block.ids, strict=True)}
        ids = tuple(identity[cell] for cell in batch.cells)
    is_view = view and len(blocks) == 1 and _is_part(batch, first.batch)
    tensor = part(first, batch) if is_view else assemble(blocks, batch)
    return Block(tensor, batch, ids, first.partials, first.axis)


def assemble(blocks: Sequence[Block], batch: Batch) -> torch.Tensor:
    """The tokens of a batch, put together from blocks that are cut in another way; the block's own tensor if they
    agree.

    A new tensor is laid out as the batch's own would be: with the same order of strides, freshly allocated. If choices
    by phase leave the blocks in several dtypes, it has one that holds the values of all. Raises ValueError for a token
    that is in none of the blocks.
    """
    for block in blocks:
        if block.batch is batch:
            return block.tensor
    template, axis = blocks[0].tensor, blocks[0].axis
    strides = template.stride()
    by_stride = sorted(range(1, template.dim()), key=lambda axis: -strides[axis])
    back = [by_stride.index(axis) + 1 for axis in range(1, template.dim())]
    shape = list(template.shape)
    shape[0], shape[axis] = batch.size
    dtype = reduce(torch.promote_types, dict.fromkeys(block.tensor.dtype for block in blocks))
    joined = template.new_empty([shape[0], *(shape[axis] for axis in by_stride)], dtype=dtype).permute(0, *back)
    if len(blocks) == 1 and _is_part(batch, blocks[0].batch):
        return joined.copy_(part(blocks[0], batch))
    copied = sum(_copy(block, joined, batch) for block in blocks)
    tokens = batch.size[0] * batch.size[1]
    if copied != tokens:
        raise ValueError(f"blocks hold {copied} of {tokens} tokens")
    return joined


def _is_part(batch: Batch, of: Batch) -> bool:
    """Whether a batch is a part of another batch's rectangle."""
    a, b = batch.rectangle, of.rectangle
    if a is None or b is None:
        return False
    return b.first <= a.first and a.last <= b.last and b.start <= a.start and a.end <= b.end


def part(block: Block, batch: Batch) -> torch.Tensor:
    """A view of the tokens of a batch that is a part of the block's rectangle."""
    a, b = batch.rectangle, block.batch.rectangle
    assert a is not None, "only rectangles are parts"
    assert b is not None, "only rectangles have parts"
    rows = block.tensor.narrow(0, a.first - b.first, a.last - a.first)
    return rows.narrow(block.axis, a.start - b.start, a.end - a.start)


def _copy(block: Block, target: torch.Tensor, batch: Batch) -> int:
    """Copies the tokens that both have from a block into the tensor of another batch; returns how many."""
    source, into = block.tensor.movedim(block.axis, 1), target.movedim(block.axis, 1)
    a, b = block.batch.rectangle, batch.rectangle
    if a is not None and b is not None:
        first, last = max(a.first, b.first), min(a.last, b.last)
        start, end = max(a.start, b.start), min(a.end, b.end)
        copied = max(0, last - first) * max(0, end - start)
        if copied:
            rows, tokens = slice(first - b.first, last - b.first), slice(start - b.start, end - b.start)
            into[rows, tokens] = source[first - a.first : last - a.first, start - a.start : end - a.start]
        return copied
    ours, theirs = common(batch, block.batch)
    ours, theirs = ours.to(into.device), theirs.to(source.device)
    width, other_width = batch.size[1], block.batch.size[1]
    into[ours // width, ours % width] = source[theirs // other_width, theirs % other_width].to(into.dtype)
    return len(ours)
