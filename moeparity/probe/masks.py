"""Probes that cancel, as rows of leaves (+M, -M and units), and how the sums are read."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch

from moeparity.probe.calls import Sums
from moeparity.probe.reveal import Block, NoTree

RANGE = {torch.float16: (15, -24), torch.bfloat16: (120, 0), torch.float32: (120, 0), torch.float64: (900, 0)}
"""Exponents of M and of a unit, as far apart as the dtype allows, so that M swamps units in any accumulator."""

_COUNTS = {torch.float64: 1 << 40, torch.float32: 1 << 22, torch.float16: 1 << 8, torch.bfloat16: 1 << 6}
"""By the dtype of an output: how many units it can count without error, a mean's scaling included."""

_AT_ONCE = 1 << 21
"""About this many leaves are filled in at a time, in memory that is reused."""


class Masks:
    """Probes for the sums at some positions of a callable that all have the same tree.

    scale: the output for a single unit, in units: 1 for a sum, about 1/n for a mean.
    """

    def __init__(self, sums: Sums, at: Sequence[int]) -> None:
        self.of, self.at = sums, sums.apart(at)
        self.n, self.dtype = sums.setup.n, sums.setup.dtype
        self.high, self.low = RANGE[self.dtype]
        self.probes = 0
        if not bool(self._cancelling_sums().isfinite().all()):
            self.high, self.low = RANGE[torch.float16]
        unit_row = torch.zeros(1, self.n, dtype=self.dtype)
        unit_row[0, self.n // 2] = self.unit
        out = self.sums(unit_row)
        self.output = out.dtype
        self.scale = float(out) / self.unit
        if not self.scale:
            raise NoTree("the sum of one value and zeros is 0")
        self.capacity = self._capacity()

    def _cancelling_sums(self) -> torch.Tensor:
        """Sums of +M and -M on the first leaf and some others; not finite if an addition is in fp16."""
        partners = torch.arange(1, self.n)[:: max(1, self.n // 16)]
        rows = torch.zeros(len(partners), self.n, dtype=self.dtype)
        rows[:, 0] = 2.0**self.high
        rows[torch.arange(len(partners)), partners] = -(2.0**self.high)
        return self.sums(rows)

    @property
    def unit(self) -> float:
        """The unit that is counted."""
        return 2.0**self.low

    def sums(self, rows: torch.Tensor, factors: torch.Tensor | None = None) -> torch.Tensor:
        """The callable's sums of rows [P, n]: [P]."""
        self.probes += len(rows)
        return self.of.sums(rows, self.at, factors)

    def ask(self, blocks: Sequence[Block]) -> list[list[int]]:
        """For each probe of each block, how many units are left. Raises NoTree if a sum is not a whole number of
        units.
        """
        sizes = [len(block.minus) for block in blocks]
        total = sum(sizes)
        chunk = max(len(self.at), _AT_ONCE // self.n // len(self.at) * len(self.at))
        memory = torch.empty(min(chunk, total), self.n, dtype=self.dtype)
        counts: list[int] = []
        todo = [(block, 0) for block in blocks]
        while todo:
            rows = memory[: total - len(counts)].zero_()
            todo = self._fill(rows, todo)
            counts += self._counts(self.sums(rows))
        answers = iter(counts)
        return [[next(answers) for _ in range(size)] for size in sizes]

    def _fill(self, rows: torch.Tensor, todo: list[tuple[Block, int]]) -> list[tuple[Block, int]]:
        """Fill `rows` with the next probes; returns the blocks that are left, each with the number of its probes
        already made.
        """
        row = number = 0
        large = 2.0**self.high
        while row < len(rows):
            block, first = todo[number]
            minus = block.minus[first : first + len(rows) - row]
            span = slice(row, row + len(minus))
            if len(block.units) == self.n:
                rows[span] = self.unit
            else:
                rows[span, torch.tensor(block.units)] = self.unit
            rows[span, block.plus] = large
            rows[torch.arange(row, span.stop), torch.tensor(minus)] = -large
            row = span.stop
            if first + len(minus) < len(block.minus):
                return [(block, first + len(minus)), *todo[number + 1 :]]
            number += 1
        return todo[number:]

    def _counts(self, out: torch.Tensor) -> list[int]:
        counts = out.double() / (self.scale * self.unit)
        whole = counts.round()
        if not bool((counts.isfinite() & ((counts - whole).abs() < 0.25) & (whole >= 0)).all()):
            raise NoTree("a sum of units is not a whole number of units: values are lost or added twice")
        numbers: list[int] = whole.long().tolist()
        return numbers

    def _capacity(self) -> int:
        """How many units can be counted without error: as many as the output can hold, or fewer if the accumulator
        can't.
        """
        limit = _COUNTS[self.output] if self.output in _COUNTS else _COUNTS[torch.bfloat16]
        least = _COUNTS[torch.bfloat16]
        if min(limit, self.n) <= least:
            return least
        draw = random.Random(0)  # noqa: S311
        sizes = [min(limit, self.n) - 1 - i for i in range(16)]
        rows = torch.zeros(len(sizes), self.n, dtype=self.dtype)
        for row, size in zip(rows, sizes, strict=True):
            row[draw.sample(range(self.n), size)] = self.unit
        exact = (self.sums(rows).double() / (self.scale * self.unit)).round().tolist() == sizes
        return limit if exact else least
