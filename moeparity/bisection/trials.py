"""The trials of a pass: which mixtures of both sides walk beside them, and how they are named."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from moeparity.bisection.arrival.words import arrival_draws
from moeparity.bisection.floor.words import floor_trials
from moeparity.bisection.prepare import Plan
from moeparity.engine.routes import IDS, REPLAYED, Replayed, replayed_plan
from moeparity.errors import SpecError
from moeparity.plan.sides import CANDIDATE, REFERENCE, Side
from moeparity.plan.toggles import Toggle, mixed

FLOOR = "floor: "
"""What the names of the floor's trials start with."""

ARRIVAL = "arrival order: "
"""What the names of further draws of sums in arrival order start with."""

SHADOW = "candidate's numerics on the reference's inputs"


def alone(toggle: Toggle) -> str:
    """The name of the trial in which the reference has this one choice of the candidate."""
    return f"{toggle.name} alone"


def restored(toggle: Toggle) -> str:
    """The name of the trial in which the candidate has this one choice of the reference."""
    return f"{toggle.name} restored"


def forced(walker: str, what: Replayed) -> str:
    """The name of a side, or of a trial, with this much of the reference's routes."""
    return f"{walker}, {what} forced"


def toggle_trials(plan: Plan, toggles: Iterable[Toggle]) -> dict[str, tuple[Side, str]]:
    """Every trial by name, with the side it is made from; mixtures that an op refuses to run are left out."""
    trials = {}
    for toggle in toggles:
        with suppress(SpecError):
            trials[alone(toggle)] = (mixed(plan.reference, [toggle], plan.candidate), REFERENCE)
        with suppress(SpecError):
            trials[restored(toggle)] = (mixed(plan.candidate, [toggle], plan.reference), CANDIDATE)
    return trials


def floor(plan: Plan) -> dict[str, tuple[Side, str]]:
    """The reference against itself."""
    trials = floor_trials(plan.reference, len(plan.tokens.input_ids))
    return {f"{FLOOR}{name}": (side, REFERENCE) for name, side in trials.items()}


def arrival(plan: Plan) -> dict[str, tuple[Side, str]]:
    """Further draws of a side that adds in order of arrival."""
    sides = {REFERENCE: plan.reference, CANDIDATE: plan.candidate}
    draws = ((name, i, drawn) for name, side in sides.items() for i, drawn in enumerate(arrival_draws(side), 1))
    return {f"{ARRIVAL}{name} {i}": (drawn, name) for name, i, drawn in draws}


def replays(plan: Plan, toggles: Iterable[Toggle]) -> dict[str, tuple[Side, Replayed]]:
    """The candidate on every rung of the replay ladder, and each toggle alone with the ids forced.

    Empty without a router; what cannot have its routes forced is left out.
    """
    if not any(node.op.routes for node in plan.model.graph.nodes):
        return {}
    asked: list[tuple[str, Side, Replayed]] = [(CANDIDATE, plan.candidate, what) for what in REPLAYED]
    alone_trials = toggle_trials(plan, (toggle for toggle in toggles if toggle in plan.tried))
    asked += [(name, side, IDS) for name, (side, base) in alone_trials.items() if base == REFERENCE]
    found: dict[str, tuple[Side, Replayed]] = {}
    for name, side, what in asked:
        with suppress(SpecError):
            replayed_plan(side.plan, plan.reference.plan)
            found[forced(name, what)] = (side, what)
    return found


def against_reference(trials: dict[str, tuple[Side, str]]) -> list[tuple[str, str]]:
    """Restored trials beside the reference: one that has all its bits is exact, however small a metric is."""
    return [(name, REFERENCE) for name, (_, base) in trials.items() if base == CANDIDATE]
