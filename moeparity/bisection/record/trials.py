"""Trials that show how far the record's side differs from itself, under choices nobody would call a difference."""

from __future__ import annotations

from moeparity.bisection.floor.trials import floor_sides
from moeparity.bisection.plan import Plan
from moeparity.bisection.trials import Trial, TrialKey, Trials
from moeparity.errors import Where
from moeparity.plan.sides import CANDIDATE


def trials(plan: Plan, trials: Trials) -> Trials:
    """That side in other micro-batches and with drawn orders, whatever `floor:` says; none if nothing was recorded."""
    name = plan.recipe.tokens.recorder
    if not plan.tokens.has_records or (plan.recorded is not None and name == CANDIDATE):
        return {}
    side = plan.candidate if name == CANDIDATE else plan.reference
    sides = floor_sides(side, plan.grid, Where(plan.path))
    return {TrialKey("record", of): Trial(side=draw, base=name) for of, draw in sides.items()}
