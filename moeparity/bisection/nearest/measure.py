"""The answers of the first pass, as the report holds them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moeparity.bisection.observed import Observed
from moeparity.bisection.plan import Plan


def parts(plan: Plan, observed: Observed, report: Mapping[str, Any]) -> Mapping[str, Any]:
    """Empty where no user's function runs; nothing is said of one that gives other bits when it is called again."""
    unsteady = {(unstable.call, unstable.node) for unstable in report["not_deterministic"]}
    answers = observed.sections.get("nearest", ())
    return {"nearest": tuple(answer for answer in answers if (answer.call, answer.node) not in unsteady)}
