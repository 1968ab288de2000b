"""Batches: tokens of the grid [B, T] that lie in one tensor, and the cells they are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from moeparity.plan.schedule.steps import Shape, Span

Rows = tuple[int, int]
"""Sequences first to last - 1."""


class Rectangle(NamedTuple):
    """Consecutive sequences, and the same tokens of each; ends excluded."""

    first: int
    last: int
    start: int
    end: int


class Batch:
    """Tokens of the grid that lie in one tensor, [b, t] or [1, n], in this order. The same tokens in the same shape are
    always the same object.

    rectangle: the tokens as a rectangle, if they lie as [b, t] (else None).
    common: a cache for `values.common`: which tokens this batch shares with other batches.
    """

    def __init__(self, grid: Batches, spans: tuple[Span, ...], shape: Shape) -> None:
        self.grid, self.spans, self.shape = grid, spans, shape
        self.common: dict[Batch, tuple[torch.Tensor, torch.Tensor]] = {}
        first, last = spans[0], spans[-1]
        dense = shape == "dense" or len(spans) == 1
        self.rectangle = Rectangle(first.sequence, last.sequence + 1, first.first, first.last) if dense else None

    @cached_property
    def size(self) -> tuple[int, int]:
        """How many sequences and tokens its tensors have: the lengths of these two axes."""
        if self.rectangle is not None:
            return self.rectangle.last - self.rectangle.first, self.rectangle.end - self.rectangle.start
        return 1, sum(span.tokens for span in self.spans)

    @cached_property
    def index(self) -> torch.Tensor:
        """The place of each of its tokens in the grid, b * T + t, int64 [n]."""
        if self.rectangle is not None:
            first, last, start, end = self.rectangle
            return (torch.arange(first, last)[:, None] * self.grid.length + torch.arange(start, end)).flatten()
        return torch.cat([torch.arange(s.first, s.last) + s.sequence * self.grid.length for s in self.spans])

    @cached_property
    def factors(self) -> torch.Tensor:
        """A random odd number for each of its tokens, the same in every batch, int64 [n]."""
        return odd_numbers(self.grid.sequences * self.grid.length)[self.index]

    @property
    def cells(self) -> tuple[int, ...]:
        """The cells that its tokens lie in, ascending."""
        return self._cells[0]

    @cached_property
    def cell_array(self) -> npt.NDArray[np.int64]:
        """`cells` as an array."""
        return np.array(self.cells, dtype=np.int64)

    @cached_property
    def cell_set(self) -> frozenset[int]:
        """`cells` as a set."""
        return frozenset(self.cells)

    @property
    def cell_of(self) -> torch.Tensor:
        """For each of its tokens, the place in `cells` of the token's cell, int64 [n]."""
        return self._cells[1]

    @cached_property
    def place_of(self) -> Mapping[int, int]:
        """By cell, its place in `cells`."""
        return {cell: place for place, cell in enumerate(self.cells)}

    @cached_property
    def _cells(self) -> tuple[tuple[int, ...], torch.Tensor]:
        if self.grid.is_whole:
            return (0,), torch.zeros_like(self.index)
        cells, places = torch.unique(self.grid.cell_of.flatten()[self.index], return_inverse=True)
        return tuple(cells.tolist()), places

    @cached_property
    def rows(self) -> Rows:
        """The range of sequences that its tokens are from."""
        sequences = [span.sequence for span in self.spans]
        return min(sequences), max(sequences) + 1

    @cached_property
    def apart(self) -> tuple[Batch, ...]:
        """One batch for each of its spans; itself if it is a rectangle."""
        if self.rectangle is not None:
            return (self,)
        return tuple(self.grid.batch((span,), "dense") for span in self.spans)

    @cached_property
    def own_sequence(self) -> torch.Tensor:
        """For each pair of its tokens, whether both are from one sequence, bool [n, n]."""
        of = self.index // self.grid.length
        return of[:, None] == of


class Batches:
    """All batches of a grid [B, T]. The same tokens in the same shape are always the same object.

    placed: for each way in which the grid is cut, the batches; every token lies in exactly one of them. Cells are the
    smallest groups of tokens that no way of cutting separates; they are numbered by their first tokens, ascending.
    """

    placed: Sequence[Sequence[Batch]]

    def __init__(self, sequences: int, length: int) -> None:
        self.sequences, self.length = sequences, length
        self._batches: dict[tuple[tuple[Span, ...], Shape], Batch] = {}
        self._rectangles: dict[Rectangle, Batch] = {}
        self._wholes: dict[Rows, Batch] = {}

    def batch(self, spans: tuple[Span, ...], shape: Shape) -> Batch:
        """These tokens in this shape."""
        key = spans, "dense" if len(spans) == 1 else shape
        if key not in self._batches:
            self._batches[key] = Batch(self, *key)
        return self._batches[key]

    def rectangle(self, first: int, last: int, start: int, end: int) -> Batch:
        """The tokens start to end - 1 of these sequences."""
        key = Rectangle(first, last, start, end)
        if key not in self._rectangles:
            spans = tuple(Span(sequence, start, end) for sequence in range(first, last))
            self._rectangles[key] = self.batch(spans, "dense")
        return self._rectangles[key]

    def whole(self, wave: Rows) -> Batch:
        """All tokens of a wave."""
        if wave not in self._wholes:
            self._wholes[wave] = self.rectangle(*wave, 0, self.length)
        return self._wholes[wave]

    @cached_property
    def _ways(self) -> Sequence[Sequence[Batch]]:
        """The different ways in which the grid is cut. For attention each span may be a batch of its own."""
        ways = (tuple(chain.from_iterable(batch.apart for batch in batches)) for batches in self.placed)
        return list(dict.fromkeys(ways))

    @cached_property
    def is_whole(self) -> bool:
        """Whether nothing cuts the grid: all of it is one cell."""
        return all(len(parts) == 1 for parts in self._ways)

    @cached_property
    def cell_of(self) -> torch.Tensor:
        """The cell of every token, int64 [B, T]."""
        labels = torch.zeros(len(self._ways), self.sequences * self.length, dtype=torch.int64)
        if self.is_whole:
            return labels[0].view(self.sequences, self.length)
        for row, parts in zip(labels, self._ways, strict=True):
            for number, part in enumerate(parts):
                row[part.index] = number
        cells = labels[0] if len(labels) == 1 else torch.unique(labels, dim=1, return_inverse=True)[1]
        first = torch.full((int(cells.max()) + 1,), cells.numel(), dtype=torch.int64)
        first.scatter_reduce_(0, cells, torch.arange(cells.numel()), "amin")
        rank = torch.empty_like(first)
        rank[first.argsort()] = torch.arange(first.numel())
        return rank[cells].view(self.sequences, self.length)


@cache
def odd_numbers(count: int, device: torch.device | None = None) -> torch.Tensor:
    """Random odd numbers, always the same, int64 [count]."""
    generator = torch.Generator().manual_seed(count)
    return (torch.randint(-(2**63), 2**63 - 1, (count,), generator=generator) | 1).to(device)
