"""Statistics of a stream of numbers in fixed memory: quantiles with bounded error, moments, the log of a sum of exp."""

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
"""A quantile between 2**-60 and 2**20 differs from the exact one by at most this fraction of it (0.25 %)."""


@dataclass(slots=True)
class Magnitudes:
    """Counts of numbers >= 0 in bins whose bounds grow by 0.5 %; takes 90 KB for any number of values.

    A quantile is the middle of its bin, so it lies within `RELATIVE_ERROR` of the exact one (DDSketch: Masson, Rim and
    Lee, VLDB 2019, with fixed bins). A value below 2**-60 counts as 0, one above 2**20 as the largest value seen. The
    quantile at q is the smallest value that at least the fraction q of all values does not exceed (numpy's
    inverted_cdf).
    """

    counts: Tensor = field(default_factory=lambda: torch.zeros(_BINS + 2, dtype=torch.int64))
    greatest: float = 0.0

    def add(self, values: Tensor) -> None:
        """Count values >= 0, fp64 [N]; infinities are allowed. Raises ValueError for NaN or a negative number."""
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


@dataclass(slots=True)
class Moments:
    """Means and centred second moments of pairs (x, y) in one pass (Chan, Golub and LeVeque, 1983)."""

    count: int = 0
    mean: Tensor = field(default_factory=lambda: torch.zeros(2, dtype=torch.float64))
    squares: Tensor = field(default_factory=lambda: torch.zeros(2, 2, dtype=torch.float64))

    def add(self, pairs: Tensor) -> None:
        """Take in fp64 [2, N]."""
        n = pairs.shape[1]
        if not n:
            return
        mean = pairs.mean(1)
        centred = pairs - mean[:, None]
        gap, total = mean - self.mean, self.count + n
        self.squares = self.squares + centred @ centred.T + torch.outer(gap, gap) * (self.count * n / total)
        self.mean, self.count = self.mean + gap * (n / total), total

    @property
    def correlation(self) -> float:
        """Pearson's correlation; NaN for fewer than two pairs or if a side does not vary."""
        spread = float((self.squares[0, 0] * self.squares[1, 1]).sqrt())
        return float(self.squares[0, 1]) / spread if self.count > 1 and spread > 0 else math.nan

    @property
    def deviation(self) -> float:
        """The standard deviation of x with n - 1; NaN for fewer than two pairs."""
        return math.sqrt(float(self.squares[0, 0]) / (self.count - 1)) if self.count > 1 else math.nan


@dataclass(slots=True)
class LogSum:
    """The log of a sum of exponentials of a stream; it overflows only if a term is infinite."""

    value: float = -math.inf

    def add(self, exponents: Tensor) -> None:
        """Take in fp64 [N]."""
        if exponents.numel():
            terms = torch.tensor([self.value, float(exponents.logsumexp(0))], dtype=torch.float64)
            self.value = float(terms.logsumexp(0))
