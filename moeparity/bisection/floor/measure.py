"""The floor in the gate's metric, and the candidate's value over it."""

from __future__ import annotations

import math
from collections.abc import Iterator

from moeparity.bisection.context import Context
from moeparity.bisection.floor.data import Floor, FloorTrial
from moeparity.bisection.floor.show import floor_reading
from moeparity.bisection.observed import Observed
from moeparity.bisection.plan import Plan
from moeparity.bisection.verdict.data import Verdicts
from moeparity.metrics.gating import gated_name
from moeparity.metrics.verdict import Verdict


def measure(of: Context) -> Floor | None:
    """The floor; None if the recipe asks for none."""
    return _floor(of.plan, of.observed, of[Verdicts].verdict) if of.plan.recipe.floor else None


def _floor(plan: Plan, observed: Observed, verdict: Verdict) -> Floor:
    trials = tuple(_floor_trials(plan, observed))
    # max() alone may drop a NaN, which has to come out as the largest.
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
