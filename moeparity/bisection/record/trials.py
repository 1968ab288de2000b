"""Trials that show how far a record's side differs from itself, under choices nobody would call a difference."""

from __future__ import annotations

from moeparity.bisection.floor.trials import floor_sides
from moeparity.bisection.plan import Plan
from moeparity.bisection.trials import Kind, Trial, TrialKey, Trials
from moeparity.errors import Where
from moeparity.plan.sides import CANDIDATE, REFERENCE


def trials(plan: Plan, trials: Trials) -> Trials:
    """The side that sampled in other micro-batches and with drawn orders, whatever `floor:` says; none if nothing was
    recorded.
    """
    tokens = plan.tokens
    return {} if tokens.logprobs is None and tokens.routed_experts is None else _draws(plan, "record")


def other_trials(plan: Plan, trials: Trials) -> Trials:
    """The same of the other side, if its engine left a record."""
    return {} if plan.tokens.trainer_logprobs is None else _draws(plan, "other record")


def recorder(plan: Plan, kind: Kind) -> str:
    """The side that stands for the engine of a record."""
    sampler = plan.recipe.tokens.sampler
    if kind == "record":
        return sampler
    return REFERENCE if sampler == CANDIDATE else CANDIDATE


def _draws(plan: Plan, kind: Kind) -> Trials:
    name = recorder(plan, kind)
    # A trace is no side that could be run anew.
    if plan.recorded is not None and name == CANDIDATE:
        return {}
    side = plan.candidate if name == CANDIDATE else plan.reference
    sides = floor_sides(side, plan.grid, Where(plan.path))
    return {TrialKey(kind, of): Trial(side=draw, base=name) for of, draw in sides.items()}
