"""How far the reference lies from itself, in the gate's metric, and the candidate's value over it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from moeparity.bisection.floor.report import Floor, FloorTrial
from moeparity.bisection.floor.words import floor_reading
from moeparity.bisection.observed import Observed
from moeparity.bisection.plan import Plan
from moeparity.metrics.gating import gated_name
from moeparity.metrics.verdict import Verdict


def parts(plan: Plan, observed: Observed, report: Mapping[str, Any]) -> Mapping[str, Any]:
    """The floor; None for a recipe that asks for none."""
    return {"floor": _floor(plan, observed, report["verdict"]) if plan.recipe.floor else None}


def _floor(plan: Plan, observed: Observed, verdict: Verdict) -> Floor:
    trials = tuple(_floor_trials(plan, observed))
    # Not by max() alone, which may drop a NaN.
    largest = max((trial.value.estimate for trial in trials), key=lambda value: (math.isnan(value), value), default=0.0)
    metric, value = gated_name(verdict.metric), verdict.value.estimate
    return Floor(
        trials=trials,
        largest=largest,
        bit_identical=bool(trials) and all(trial.bit_identical for trial in trials),
        ratio=value / largest if largest > 0 else None,
        reading=tuple(floor_reading(trials, metric=metric, value=value, gate=verdict.below)),
    )


def _floor_trials(plan: Plan, observed: Observed) -> Iterator[FloorTrial]:
    for key in observed.keys("floor"):
        sums = observed.logits.sums(key)
        yield FloorTrial(
            name=key.of,
            value=sums.gate_value(plan.gate),
            bit_identical=not bool(sums.unequal.any()),
            flipped_routes=observed.routes.flip_share(key),
        )
