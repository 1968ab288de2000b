"""Means over tokens of the sums that the observer kept."""

from __future__ import annotations

from moeparity.bisection.context import Context
from moeparity.bisection.distribution.data import Distribution
from moeparity.bisection.distribution.observe import DISTRIBUTIONS, Distributions


def measure(of: Context) -> Distribution | None:
    """The means; None if no token has finite values on both sides."""
    sums = of.observed.of_watch(DISTRIBUTIONS)
    return _distribution(sums) if sums is not None and sums.tokens else None


def _distribution(sums: Distributions) -> Distribution:
    jsd, tv, jaccard, rank = (total / sums.tokens for total in sums.sums)
    return Distribution(jsd=jsd, tv=tv, max_tv=sums.max_tv, top10_jaccard=jaccard, rank_change=rank)
