"""The functions that gave other bits when called again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moeparity.bisection.determinism.observe import Repeats
from moeparity.bisection.determinism.report import NotDeterministic
from moeparity.bisection.observed import Observed
from moeparity.bisection.plan import Plan


def parts(plan: Plan, observed: Observed, report: Mapping[str, Any]) -> Mapping[str, Any]:
    """One entry for each side and node."""
    repeats: Mapping[tuple[str, str], Repeats] = observed.sections.get("determinism", {})
    return {
        "not_deterministic": tuple(
            NotDeterministic(side=side, call=again.call, node=node, values=again.values, of=again.of, calls=again.calls)
            for (side, node), again in repeats.items()
            if again.values
        )
    }
