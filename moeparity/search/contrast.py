"""Contrasts: weighted sums of mixtures' values, exact, with their interval over sequences."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from moeparity.search.oracle import Coalition, Oracle, Outcome

Bounds = Callable[[Sequence[float], Sequence[float]], tuple[float, float]]
"""The 95 % interval of sum(sums) / sum(tokens) that resamples sequences; both arguments are [B].

In the product this is the bootstrap-t of `moeparity.observe.statistics.token_mean`, handed in since it needs torch.
"""


@dataclass(frozen=True, slots=True)
class Contrast:
    """The sum over mixtures of weight * value / divisor: a share, a difference, an interaction.

    Weights are whole numbers, so that equal outcomes cancel exactly. All mixtures score the same tokens, so the
    contrast of the values is the mean per token of the contrast of the sums, and sequences are resampled in pairs.
    """

    weights: Mapping[Coalition, int]
    divisor: int = 1

    def value(self, oracle: Oracle) -> Fraction | None:
        """The contrast of the values, nats per token, without any rounding; None where `usable` is false."""
        found = self._outcomes(oracle)
        return None if found is None else self._mean((weight, outcome.value) for weight, outcome in found)

    def k3(self, oracle: Oracle) -> Fraction | None:
        """The same of the k3, nats per token; None also where a k3 is not finite."""
        found = self._outcomes(oracle)
        if found is None or not all(math.isfinite(outcome.k3) for _, outcome in found):
            return None
        return self._mean((weight, outcome.k3) for weight, outcome in found)

    def interval(self, oracle: Oracle, bounds: Bounds) -> tuple[float, float]:
        """The interval of the contrast, nats per token; unbounded where `usable` is false.

        It is nominal for this one contrast: not widened for how many are looked at.
        """
        found = self._outcomes(oracle)
        if not found:
            return (-math.inf, math.inf) if found is None else (0.0, 0.0)
        return bounds(self._summed(found), found[0][1].tokens)

    def sums(self, oracle: Oracle) -> list[float] | None:
        """The contrast of each sequence's sums, [B], nats; None where `usable` is false."""
        found = self._outcomes(oracle)
        if found:
            return self._summed(found)
        empty = next((outcome for outcome in oracle.known.values() if outcome is not None), None)
        return None if found is None or empty is None else [0.0] * len(empty.tokens)

    def _summed(self, found: list[tuple[int, Outcome]]) -> list[float]:
        """Of each sequence."""
        rows = zip(*(outcome.sums for _, outcome in found), strict=True)
        weights = [weight for weight, _ in found]
        return [math.fsum(w * x for w, x in zip(weights, row, strict=True)) / self.divisor for row in rows]

    def _mean(self, weighted: Iterable[tuple[int, float]]) -> Fraction:
        return sum((weight * Fraction(value) for weight, value in weighted), Fraction()) / self.divisor

    def _outcomes(self, oracle: Oracle) -> list[tuple[int, Outcome]] | None:
        found = []
        for coalition, outcome in zip(self.weights, oracle.ask(self.weights), strict=True):
            if outcome is None or not usable(outcome):
                return None
            if self.weights[coalition]:
                found.append((self.weights[coalition], outcome))
        return found


def usable(outcome: Outcome | None) -> bool:
    """Whether a mixture ran and has a finite KL, so that it can be part of a sum."""
    return outcome is not None and math.isfinite(outcome.value) and all(map(math.isfinite, outcome.sums))


def difference(more: Coalition, less: Coalition) -> Contrast:
    """The value of `more` minus that of `less`; without weights where both are the same mixture."""
    return Contrast({more: 1, less: -1} if more != less else {})
