"""How far the reference lies from itself, in the gate's metric, and the candidate's value over it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from moeparity.bisection.floor.report import Floor, FloorTrial
from moeparity.bisection.floor.words import FloorValue, floor_reading
from moeparity.bisection.observed import Observed
from moeparity.bisection.prepare import Plan
from moeparity.metrics.interval import sequence_mean, token_mean
from moeparity.metrics.verdict import Verdict


def parts(plan: Plan, observed: Observed, report: Mapping[str, Any]) -> Mapping[str, Any]:
    """The floor; None for a recipe that asks for none."""
    return {"floor": _floor(plan, observed, report["verdict"]) if plan.recipe.floor else None}


def _floor(plan: Plan, observed: Observed, verdict: Verdict) -> Floor:
    trials = tuple(_floor_trials(plan, observed))
    values = [FloorValue(name=t.name, value=t.value.estimate, bit_identical=t.bit_identical) for t in trials]
    # Not by max() alone, which may drop a NaN.
    largest = max((v.value for v in values), key=lambda value: (math.isnan(value), value), default=0.0)
    return Floor(
        trials=trials,
        largest=largest,
        bit_identical=bool(trials) and all(trial.bit_identical for trial in trials),
        ratio=verdict.value.estimate / largest if largest > 0 else None,
        reading=tuple(floor_reading(values, metric=verdict.metric, value=verdict.value.estimate, gate=verdict.below)),
    )


def _floor_trials(plan: Plan, observed: Observed) -> Iterator[FloorTrial]:
    mean = token_mean if plan.recipe.gate.reduce == "token" else sequence_mean
    for key in observed.keys("floor"):
        sums, flips = observed.logits.sums(key), observed.routes.total(key)
        yield FloorTrial(
            name=key.of,
            value=mean(sums.k3, sums.tokens),
            bit_identical=not bool(sums.unequal.any()),
            flipped_routes=flips.set_flips / flips.tokens if flips else None,
        )
