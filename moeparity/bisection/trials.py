"""The trials of a pass: which mixtures of both sides walk beside them, and what they are known by."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, Literal

from moeparity.bisection.plan import Plan
from moeparity.engine.routes import NATURAL, Forced, Routes
from moeparity.engine.walker import Name, Walker
from moeparity.errors import SpecError
from moeparity.plan.sides import CANDIDATE, REFERENCE, Side
from moeparity.plan.toggles import Toggle, mixed

SHADOW: Final = "one side's numerics on the other's inputs"
"""The walker that shows each node's local error."""

Kind = Literal["alone", "restored", "candidate", "floor", "record", "arrival"]


@dataclass(frozen=True, slots=True)
class TrialKey:
    """What a trial is known by.

    alone, restored: the reference with the toggle `of` of the candidate; the candidate with it of the reference.
    candidate: the candidate itself, with forced routes. floor: the reference under the choice that `of` names; record:
    the side that the record is of, likewise.
    arrival: the side `of` with its sums in order of arrival in another `draw`.
    forced: how much of the reference's routes its routers take over.
    """

    kind: Kind
    of: str = ""
    draw: int = 0
    forced: Routes = NATURAL


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A mixture to run: the side it is, the side it was made from, and the routes it is forced to take over."""

    side: Side
    base: str
    routes: Forced | None = None


Trials = dict[TrialKey, Trial]


def alone(toggle: Toggle) -> TrialKey:
    """The trial in which the reference has this one choice of the candidate."""
    return TrialKey("alone", toggle.name)


def restored(toggle: Toggle) -> TrialKey:
    """The trial in which the candidate has this one choice of the reference."""
    return TrialKey("restored", toggle.name)


def toggle_trials(plan: Plan, toggles: Iterable[Toggle]) -> Trials:
    """Every toggle alone and restored; mixtures that an op refuses to run are left out."""
    trials: Trials = {}
    for toggle in toggles:
        with suppress(SpecError):
            trials[alone(toggle)] = Trial(side=mixed(plan.reference, [toggle], plan.candidate), base=REFERENCE)
        with suppress(SpecError):
            trials[restored(toggle)] = Trial(side=mixed(plan.candidate, [toggle], plan.reference), base=CANDIDATE)
    return trials


def sides(plan: Plan) -> list[Walker]:
    """Both sides, as they walk in every pass; of a recorded candidate what was recorded of it."""
    return [walker(plan, REFERENCE, plan.reference), candidate(plan)]


def candidate(plan: Plan) -> Walker:
    """The candidate, or what was recorded of it."""
    own_walker = walker(plan, CANDIDATE, plan.candidate)
    return own_walker if plan.recorded is None else replace(own_walker, grafts=plan.recorded.grafts, shows="recorded")


def shadow(plan: Plan) -> Walker | None:
    """What shows each node's local error: the candidate's numerics on the reference's inputs; of a trace, which has no
    numerics to run, the reference's on the recorded inputs. None where nothing is tried.
    """
    if plan.recorded is not None:
        return replace(walker(plan, SHADOW, plan.reference), grafts=plan.recorded.grafts)
    return walker(plan, SHADOW, plan.candidate, inputs_of=REFERENCE) if plan.attribution else None


def walker(
    plan: Plan, name: Name, side: Side, *, inputs_of: Name | None = None, routes: Forced | None = None
) -> Walker:
    """What runs a side, or a mixture, of a plan in a pass. Raises SpecError."""
    return Walker(
        name=name,
        plan=side.plan,
        schedule=plan.walked(side),
        inputs_of=inputs_of,
        routes=routes,
        functions=plan.functions,
    )
