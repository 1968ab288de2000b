"""Sequences that a log has several times: of other sequences they say no more than one of them does."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor


def firsts(contents: Tensor) -> Tensor:
    """int64 [B]: for each row of `contents`, int64 [B], the number of the first row that is equal to it."""
    inverse = torch.unique(contents, return_inverse=True)[1]
    rows = torch.arange(len(inverse))
    first = torch.full_like(rows, len(rows)).scatter_reduce(0, inverse, rows, "amin")
    return first[inverse]


@dataclass(slots=True)
class Repetitions:
    """Which of the sequences that were added, chunk by chunk, have the same contents."""

    _contents: list[Tensor] = field(default_factory=list)
    _first: Tensor | None = None
    _different: Tensor | None = None

    def add(self, contents: Tensor) -> None:
        """Take in further sequences by their contents, int64 [B]: equal for sequences that repeat each other."""
        self._contents.append(contents)
        self._first = self._different = None

    @property
    def first(self) -> Tensor:
        """For each sequence the number of the first one with the same contents, int64 [B]."""
        if self._first is None:
            self._contents = [torch.cat(self._contents)] if self._contents else []
            self._first = firsts(self._contents[0]) if self._contents else torch.zeros(0, dtype=torch.int64)
        return self._first

    @property
    def different(self) -> Tensor:
        """The numbers of the sequences that repeat no earlier one, ascending, int64."""
        if self._different is None:
            self._different = torch.unique(self.first)
        return self._different

    @property
    def count(self) -> int:
        """How many sequences repeat an earlier one."""
        return len(self.first) - len(self.different)

    def merged(self, column: Tensor) -> Tensor:
        """Sums of all sequences, fp64 [B, ...], with those of repetitions added to the first's: one row for each
        different sequence, in the order in which these came.
        """
        if not self.count:
            return column
        return torch.zeros_like(column).index_add_(0, self.first, column)[self.different]
