"""Contrasts: weighted sums of mixtures' values, exact, with their interval over sequences."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from moeparity.search.memo import Memo, Mixture, Outcome

Interval = tuple[float, float]

CARRYING = 3.0
"""Where a whole is carried by fewer sequences than this, its parts have no bounds: a few more would turn them over.

Sequences count as `carrying` says.
"""

Bounds = Callable[[Sequence[float], Sequence[float]], Interval]
"""The 95 % interval of sum(sums) / sum(tokens) that resamples sequences; both arguments are [B].

In the product this is `moeparity.metrics.interval.tail_mean`, handed in since it needs torch.
"""


@dataclass(frozen=True, slots=True)
class Contrast:
    """The sum over mixtures of weight * value / divisor: a share, a difference, an interaction.

    Weights are whole numbers, so that equal outcomes cancel exactly. All mixtures score the same tokens, so the
    contrast of the values is the mean per token of the contrast of the sums, and sequences are resampled in pairs.
    """

    weights: Mapping[Mixture, int]
    divisor: int = 1

    def value(self, memo: Memo) -> Fraction | None:
        """The contrast of the values, nats per token, without any rounding; None where `usable` is false."""
        outcomes = self._outcomes(memo)
        return None if outcomes is None else self._mean((weight, outcome.value) for weight, outcome in outcomes)

    def k3(self, memo: Memo) -> Fraction | None:
        """The same of the k3, nats per token; None also where a k3 is not finite."""
        outcomes = self._outcomes(memo)
        if outcomes is None or not all(math.isfinite(outcome.k3) for _, outcome in outcomes):
            return None
        return self._mean((weight, outcome.k3) for weight, outcome in outcomes)

    def interval(self, memo: Memo, bounds: Bounds) -> Interval:
        """The interval of the contrast, nats per token; unbounded where `usable` is false.

        It is nominal for this one contrast: not widened for how many are looked at.
        """
        outcomes = self._outcomes(memo)
        if not outcomes:
            return (-math.inf, math.inf) if outcomes is None else (0.0, 0.0)
        return bounds(self._sums_of(outcomes), outcomes[0][1].tokens)

    def part(self, of: Contrast, memo: Memo, bounds: Bounds) -> Interval:
        """The 95 % interval of this contrast over another that is not negative in any sequence, a pure number.

        Both vary over sequences, so this is not the interval of one over the estimate of the other: what is steady
        beside something that a few sequences carry is known well in nats and badly as a part. Sequences are resampled
        with both their sums, as in any ratio; each bound is then moved by what one more sequence would move the part
        that has as much of the other as the greatest, and as large or small a part of it, from 0 to 1, as any has.
        Unbounded where either is not `usable`, and for fewer than `CARRYING` sequences with something of the other.
        """
        share, totals = self.sums(memo), of.sums(memo)
        if share is None or totals is None or not math.fsum(totals) > 0:
            return -math.inf, math.inf
        if not any(share):
            return 0.0, 0.0
        if all(math.isclose(a, b, rel_tol=1e-12) for a, b in zip(share, totals, strict=True)):
            # All of it in every sequence, as the share of a toggle that is the only one: nothing varies.
            return 1.0, 1.0
        if carrying(totals) < CARRYING:
            return -math.inf, math.inf
        # A sequence without divergence still counts, with whatever the share is there.
        low, high = bounds(share, [max(total, sys.float_info.min) for total in totals])
        mean, one_more = math.fsum(share) / math.fsum(totals), max(totals) / (math.fsum(totals) + max(totals))
        parts = [min(max(part / total, 0.0), 1.0) for part, total in zip(share, totals, strict=True) if total > 0]
        down, up = max(mean - min(parts), 0.0), max(max(parts) - mean, 0.0)
        return low - down * one_more, high + up * one_more

    def sums(self, memo: Memo) -> list[float] | None:
        """The contrast of each sequence's sums, [B], nats; None where `usable` is false."""
        outcomes = self._outcomes(memo)
        if outcomes:
            return self._sums_of(outcomes)
        empty = next((outcome for outcome in memo.outcomes.values() if outcome is not None), None)
        return None if outcomes is None or empty is None else [0.0] * len(empty.tokens)

    def _sums_of(self, outcomes: list[tuple[int, Outcome]]) -> list[float]:
        """Of each sequence."""
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
    """Whether a mixture ran and has a finite KL, so that it can be part of a sum."""
    return outcome is not None and math.isfinite(outcome.value) and all(map(math.isfinite, outcome.sums))


def carrying(sums: Sequence[float]) -> float:
    """How many sequences carry a sum of terms that are not negative: (sum w)^2 / sum w^2 (Kish); the sum is above 0."""
    greatest = max(sums)
    return math.fsum(w / greatest for w in sums) ** 2 / math.fsum((w / greatest) ** 2 for w in sums)


def surely_above(interval: Interval, line: float = 0.0) -> bool:
    """Whether an interval is finite and lies above a line: nothing is said of one without bounds."""
    return math.isfinite(interval[1]) and line < interval[0] < math.inf


def surely_below(interval: Interval) -> bool:
    """Whether an interval is finite and lies below 0."""
    return math.isfinite(interval[0]) and -math.inf < interval[1] < 0.0


def difference(minuend: Mixture, subtrahend: Mixture) -> Contrast:
    """The value of `minuend` minus that of `subtrahend`; without weights where both are the same mixture."""
    return Contrast({minuend: 1, subtrahend: -1} if minuend != subtrahend else {})
