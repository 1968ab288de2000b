"""Quantiles of a stream of magnitudes in fixed memory, with a bound on their error."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

_GROWTH = 1.005
_LEAST, _GREATEST = 2.0**-60, 2.0**20
_FIRST = math.floor(math.log(_LEAST) / math.log(_GROWTH))
_BINS = math.ceil(math.log(_GREATEST) / math.log(_GROWTH)) - _FIRST + 1

RELATIVE_ERROR = (_GROWTH - 1) / (_GROWTH + 1)
"""Of a quantile between 2**-60 and 2**20: at most so far from the exact one, as a share of it (0.25 %)."""


@dataclass(slots=True)
class Magnitudes:
    """Counts of numbers >= 0 in bins whose bounds grow by 0.5 %: 90 KB, whatever the number of values.

    A quantile is the middle of its bin, so it lies within `RELATIVE_ERROR` of the exact one (DDSketch: Masson, Rim and
    Lee, VLDB 2019, with fixed bins). Below 2**-60 a value counts as 0, above 2**20 as the greatest value seen. The
    quantile at q is the smallest value that at least the share q of all values does not exceed (numpy's inverted_cdf).
    """

    counts: Tensor = field(default_factory=lambda: torch.zeros(_BINS + 2, dtype=torch.int64))
    greatest: float = 0.0

    def add(self, values: Tensor) -> None:
        """Count fp64 [N] values >= 0; infinities may be among them. Raises ValueError for NaN or a negative number."""
        if not bool((values >= 0).all()):
            raise ValueError("a magnitude is NaN or negative")
        if values.numel():
            index = (values.log() / math.log(_GROWTH)).ceil().clamp(_FIRST - 1, _FIRST + _BINS) - (_FIRST - 1)
            self.counts += torch.bincount(index.to(torch.int64), minlength=_BINS + 2)
            self.greatest = max(self.greatest, float(values.max()))

    def quantile(self, at: float) -> float:
        """The quantile at `at` in (0, 1]; NaN without values."""
        total = int(self.counts.sum())
        if not total:
            return math.nan
        rank = max(1, math.ceil(at * total))
        index = int((self.counts.cumsum(0) < rank).sum())
        if index == 0:
            return 0.0
        if rank == total or index == _BINS + 1:
            return self.greatest
        middle = 2 * _GROWTH ** (index + _FIRST - 1) / (_GROWTH + 1)
        return min(middle, self.greatest)
