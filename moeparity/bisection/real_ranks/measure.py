"""Takes what a live job computed into the report."""

from __future__ import annotations

from moeparity.bisection.context import Context
from moeparity.bisection.real_ranks.data import RealRanks


def measure(of: Context) -> RealRanks | None:
    """What the job computed before the first pass; None if ranks are only simulated."""
    return of.plan.real_ranks
