"""What a live job gave, as the report holds it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moeparity.bisection.observed import Observed
from moeparity.bisection.plan import Plan


def parts(plan: Plan, observed: Observed, report: Mapping[str, Any]) -> Mapping[str, Any]:
    """The job, which was run before; None where ranks are simulated only."""
    return {"real_ranks": plan.real_ranks}
