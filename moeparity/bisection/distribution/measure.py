"""The means over tokens of what was summed of both distributions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moeparity.bisection.distribution.observe import Distributions
from moeparity.bisection.distribution.report import Distribution
from moeparity.bisection.observed import Observed
from moeparity.bisection.plan import Plan


def parts(plan: Plan, observed: Observed, report: Mapping[str, Any]) -> Mapping[str, Any]:
    """The distributions; None without a token whose values are finite on both sides."""
    sums: Distributions = observed.sections["distribution"]
    return {"distribution": _distribution(sums) if sums.tokens else None}


def _distribution(sums: Distributions) -> Distribution:
    jsd, tv, jaccard, rank = (total / sums.tokens for total in sums.sums)
    return Distribution(jsd=jsd, tv=tv, max_tv=sums.max_tv, top10_jaccard=jaccard, rank_change=rank)
