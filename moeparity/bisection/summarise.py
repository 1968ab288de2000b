"""What the passes saw, put into a Report: every section makes its parts."""

from __future__ import annotations

from typing import Any

from moeparity.bisection.observed import Observed
from moeparity.bisection.plan import Plan
from moeparity.bisection.report import Report
from moeparity.bisection.sections import modules


def summarise(plan: Plan, observed: Observed) -> Report:
    """The report of one run. A section sees the parts of those before it in the list."""
    parts: dict[str, Any] = {}
    for section in modules("measure").values():
        parts |= section.parts(plan, observed, parts)
    return Report(**parts)
