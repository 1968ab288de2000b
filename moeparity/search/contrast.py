"""Contrasts: weighted sums of the values of mixtures, computed exactly, with an interval over sequences."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from moeparity.search.memo import Memo, Mixture, Outcome

Interval = tuple[float, float]

CARRYING = 3.0
"""If fewer sequences than this carry a whole (as `carrying` counts), its parts get no bounds, since a few further
sequences would change everything.
"""

Bounds = Callable[[Sequence[float], Sequence[float]], Interval]
"""(sums [B], tokens [B]) -> the 95 % interval of sum(sums) / sum(tokens), by resampling sequences.

It is `moeparity.metrics.interval.tail_mean`, handed in because that needs torch.
"""


@dataclass(frozen=True, slots=True)
class Contrast:
    """A sum over mixtures of weight * value / divisor, such as a share, a difference or an interaction.

    Weights are integers, so that equal outcomes cancel exactly. All mixtures score the same tokens, so the contrast of
    the values is the mean per token of the contrast of the sums, and sequences are resampled in pairs.
    """

    weights: Mapping[Mixture, int]
    divisor: int = 1

    def value(self, memo: Memo) -> Fraction | None:
        """The contrast of the values in nats per token, as an exact fraction; None if a mixture is not `usable`."""
        outcomes = self._outcomes(memo)
        return None if outcomes is None else self._mean((weight, outcome.value) for weight, outcome in outcomes)

    def k3(self, memo: Memo) -> Fraction | None:
        """The contrast of k3 in nats per token, as an exact fraction; None also if some k3 is not finite."""
        outcomes = self._outcomes(memo)
        if outcomes is None or not all(math.isfinite(outcome.k3) for _, outcome in outcomes):
            return None
        return self._mean((weight, outcome.k3) for weight, outcome in outcomes)

    def interval(self, memo: Memo, bounds: Bounds) -> Interval:
        """The interval of the contrast in nats per token; infinite if a mixture is not `usable`.

        It is nominal for this one contrast, not widened for the number of contrasts that are looked at.
        """
        outcomes = self._outcomes(memo)
        if not outcomes:
            return (-math.inf, math.inf) if outcomes is None else (0.0, 0.0)
        return bounds(self._sums_of(outcomes), outcomes[0][1].tokens)

    def part(self, of: Contrast, memo: Memo, bounds: Bounds) -> Interval:
        """The 95 % interval of this contrast as a fraction of another contrast, `of`, which is negative in no sequence.

        Both vary over sequences, so this interval is wider than that of this contrast divided by the estimate of `of`:
        a steady share of a divergence that few sequences carry is well known in nats and badly known as a fraction.
        Sequences are resampled with both sums, as for any ratio. Then each bound is moved by the effect of one more
        sequence. Its `of` is the largest of all sequences; its fraction is the smallest of all for the lower bound, the
        largest for the upper bound, clipped to 0 to 1. The interval is infinite if a mixture is not `usable`, and if
        fewer than `CARRYING` sequences carry `of`.
        """
        share, totals = self.sums(memo), of.sums(memo)
        if share is None or totals is None or not math.fsum(totals) > 0:
            return -math.inf, math.inf
        if not any(share):
            return 0.0, 0.0
        if all(math.isclose(a, b, rel_tol=1e-12) for a, b in zip(share, totals, strict=True)):
            # This contrast is the whole in every sequence, as the share of the only toggle is: nothing varies.
            return 1.0, 1.0
        if carrying(totals) < CARRYING:
            return -math.inf, math.inf
        # A sequence without divergence still counts, with whatever its share is.
        low, high = bounds(share, [max(total, sys.float_info.min) for total in totals])
        mean, one_more = math.fsum(share) / math.fsum(totals), max(totals) / (math.fsum(totals) + max(totals))
        parts = [min(max(part / total, 0.0), 1.0) for part, total in zip(share, totals, strict=True) if total > 0]
        down, up = max(mean - min(parts), 0.0), max(max(parts) - mean, 0.0)
        return low - down * one_more, high + up * one_more

    def sums(self, memo: Memo) -> list[float] | None:
        """The contrast of the sums of each sequence, [B], in nats; None if a mixture is not `usable`."""
        outcomes = self._outcomes(memo)
        if outcomes:
            return self._sums_of(outcomes)
        empty = next((outcome for outcome in memo.outcomes.values() if outcome is not None), None)
        return None if outcomes is None or empty is None else [0.0] * len(empty.tokens)

    def _sums_of(self, outcomes: list[tuple[int, Outcome]]) -> list[float]:
        """The contrast of each sequence's sums, from outcomes with their weights."""
        rows = zip(*(outcome.sums for _, outcome in outcomes), strict=True)
        weights = [weight for weight, _ in outcomes]
        return [math.fsum(w * x for w, x in zip(weights, row, strict=True)) / self.divisor for row in rows]

    def _mean(self, terms: Iterable[tuple[int, float]]) -> Fraction:
        return sum((weight * Fraction(value) for weight, value in terms), Fraction()) / self.divisor

    def _outcomes(self, memo: Memo) -> list[tuple[int, Outcome]] | None:
        outcomes = []
        for mixture, outcome in zip(self.weights, memo.ask(self.weights), strict=True):
            if outcome is None or not usable(outcome):
                return None
            if self.weights[mixture]:
                outcomes.append((self.weights[mixture], outcome))
        return outcomes


def usable(outcome: Outcome | None) -> bool:
    """Whether a mixture ran and has a finite KL, so that it can be a term of a sum."""
    return outcome is not None and math.isfinite(outcome.value) and all(map(math.isfinite, outcome.sums))


def carrying(sums: Sequence[float]) -> float:
    """How many sequences carry a sum of terms that are not negative: (sum w)^2 / sum w^2 (Kish). The sum must be
    above 0.
    """
    greatest = max(sums)
    return math.fsum(w / greatest for w in sums) ** 2 / math.fsum((w / greatest) ** 2 for w in sums)


def surely_above(interval: Interval, line: float = 0.0) -> bool:
    """Whether an interval is finite and lies above a line; an interval without bounds shows nothing."""
    return math.isfinite(interval[1]) and line < interval[0] < math.inf


def surely_below(interval: Interval) -> bool:
    """Whether an interval is finite and lies below 0."""
    return math.isfinite(interval[0]) and -math.inf < interval[1] < 0.0


def difference(minuend: Mixture, subtrahend: Mixture) -> Contrast:
    """The value of `minuend` minus that of `subtrahend`; without any weight if they are the same mixture."""
    return Contrast({minuend: 1, subtrahend: -1} if minuend != subtrahend else {})
