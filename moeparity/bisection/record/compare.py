"""What a side lies from a record, held to what it lies from itself: where it is more, and from which position on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from moeparity.bisection.floor.words import AT_THE_FLOOR
from moeparity.metrics.interval import token_mean
from moeparity.metrics.verdict import Interval

FAR = 3.0
"""A token is outside where its |delta| is more than so many times the largest that any draw of the floor has."""


def excess(sums: Tensor, floor: Tensor, allowed: Tensor, counts: Tensor) -> tuple[Interval, bool]:
    """How far a mean lies over its floor and what is allowed beside, paired over sequences; and whether it is within.

    All fp64 [B], sums over the tokens of each sequence, and their number. It is within where the interval does not lie
    above 0 and the mean is at most `AT_THE_FLOOR` floors and what is allowed: few sequences bound nothing.
    """
    over = token_mean(sums - floor - allowed, counts)
    within = not over.low > 0 and bool(sums.sum() <= AT_THE_FLOOR * floor.sum() + allowed.sum())
    return over, within


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A side and its draws on the tokens that have a record, token by token.

    sequence, position: int64 [N]; `position` counts from the first token of the sequence.
    delta: fp64 [N], the side's |log P - the recorded one|, in nats. half_unit: fp64 [N].
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
        """The draw whose mean |delta| is the greatest; None without a draw."""
        return max(self.floors, key=lambda name: float(self.floors[name].sum()), default=None)

    @property
    def floor(self) -> Tensor:
        """|delta| of that draw, fp64 [N]; 0 without one."""
        return torch.zeros_like(self.delta) if self.furthest is None else self.floors[self.furthest]

    @property
    def outside(self) -> Tensor:
        """bool [N]: tokens beyond what any draw does; those whose |delta| is not finite are."""
        return ~(self.delta <= FAR * self.loudest + self.half_unit)

    def excess(self) -> tuple[Interval, bool]:
        """As `excess`, of |delta|."""
        return excess(*(self._sums(x) for x in (self.delta, self.floor, self.half_unit, torch.ones_like(self.delta))))

    @property
    def reproduced(self) -> bool:
        """Whether no token lies outside, and the mean is within."""
        return not bool(self.outside.any()) and self.excess()[1]

    def first_position(self) -> int | None:
        """A position up to which the record is reproduced, and with which it is not; None where all of it is.

        Found by halving, so that of several such positions it need not be the first, unless a token lies outside.
        """
        if self.reproduced:
            return None
        positions: list[int] = torch.unique(self.position).tolist()
        # Where a token lies outside, the first such one bounds the search.
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
