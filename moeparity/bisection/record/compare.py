"""Compares a side's distance from a record with its distance from itself: is it more, and from which position on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from moeparity.bisection.floor.show import AT_THE_FLOOR
from moeparity.bisection.record.data import FAR
from moeparity.metrics.interval import token_mean
from moeparity.metrics.verdict import Interval


def excess(sums: Tensor, floor: Tensor, allowed: Tensor, counts: Tensor) -> tuple[Interval, bool]:
    """By how much a mean exceeds its floor plus what is allowed, paired over sequences; and whether it is within them.

    sums, floor, allowed: fp64 [B], sums over the tokens of each sequence; counts: their number. The mean is within if
    the interval does not lie wholly above 0, and the mean is at most `AT_THE_FLOOR` x floor + allowed. The second
    condition is needed because the interval of few sequences bounds nothing.
    """
    over = token_mean(sums - floor - allowed, counts)
    within = not over.low > 0 and bool(sums.sum() <= AT_THE_FLOOR * floor.sum() + allowed.sum())
    return over, within


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A side and its draws at the tokens that have a record, token by token.

    sequence, position: int64 [N]; `position` counts from the first token of the sequence.
    delta: fp64 [N], |log P of the side - the recorded one|, in nats. half_unit: fp64 [N], half a unit of the record's
        last digit, in nats.
    floors: by draw, fp64 [N], |log P of the draw - that of the side|; finite.
    loudest: the largest of `floors`.
    """

    sequence: Tensor
    position: Tensor
    delta: Tensor
    half_unit: Tensor
    floors: Mapping[str, Tensor]
    loudest: float

    @property
    def furthest(self) -> str | None:
        """The draw with the largest mean |delta|; None without a draw."""
        return max(self.floors, key=lambda name: float(self.floors[name].sum()), default=None)

    @property
    def floor(self) -> Tensor:
        """|delta| of the draw `furthest`, fp64 [N]; 0 without one."""
        return torch.zeros_like(self.delta) if self.furthest is None else self.floors[self.furthest]

    @property
    def outside(self) -> Tensor:
        """bool [N]: tokens whose |delta| is beyond what any draw does, or is not finite."""
        return ~(self.delta <= FAR * self.loudest + self.half_unit)

    def excess(self) -> tuple[Interval, bool]:
        """The function `excess`, applied to |delta|."""
        return excess(*(self._sums(x) for x in (self.delta, self.floor, self.half_unit, torch.ones_like(self.delta))))

    @property
    def reproduced(self) -> bool:
        """Whether no token lies outside and the mean is within."""
        return not bool(self.outside.any()) and self.excess()[1]

    def first_position(self) -> int | None:
        """The first position with which the record is no longer reproduced; None if all of it is.

        Found by halving. If the record is reproduced again after some such position, a later one may be found, unless a
        token lies outside.
        """
        if self.reproduced:
            return None
        positions: list[int] = torch.unique(self.position).tolist()
        # If a token lies outside, the first such one bounds the search.
        last = int(self.position[self.outside].min()) if bool(self.outside.any()) else positions[-1]
        low, high = 0, positions.index(last)
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self._upto(positions[middle]).reproduced else (low, middle)
        return positions[high]

    def _upto(self, position: int) -> Compared:
        keep = self.position <= position
        return Compared(
            sequence=self.sequence[keep],
            position=self.position[keep],
            delta=self.delta[keep],
            half_unit=self.half_unit[keep],
            floors={name: floor[keep] for name, floor in self.floors.items()},
            loudest=self.loudest,
        )

    def _sums(self, values: Tensor) -> Tensor:
        """Sums over the tokens of each sequence, fp64 [B]."""
        sums = torch.zeros(int(self.sequence.max()) + 1, dtype=torch.float64)
        return sums.index_add_(0, self.sequence, values)
