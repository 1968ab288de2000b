"""The side that the record is of under choices that nobody would call a difference: how far it lies from itself."""

from __future__ import annotations

from moeparity.bisection.floor.trials import floor_sides
from moeparity.bisection.plan import Plan
from moeparity.bisection.trials import Trial, TrialKey, Trials
from moeparity.errors import Where
from moeparity.plan.sides import CANDIDATE


def trials(plan: Plan, trials: Trials) -> Trials:
    """That side in other micro-batches and drawn orders, whatever `floor:` says; none where nothing was recorded."""
    name = plan.recipe.tokens.sampler
    if not plan.tokens.has_records or (plan.recorded is not None and name == CANDIDATE):
        return {}
    side = plan.candidate if name == CANDIDATE else plan.reference
    sides = floor_sides(side, plan.grid, Where(plan.path))
    return {TrialKey("record", of): Trial(side=draw, base=name) for of, draw in sides.items()}
