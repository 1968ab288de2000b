"""The trials of a pass: which mixtures run beside both sides, and their keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from moeparity.bisection.plan import Plan
from moeparity.engine.refusals import refusals
from moeparity.engine.routes import NATURAL, Forced, Routes
from moeparity.engine.walker import Name, Walker
from moeparity.errors import SpecError
from moeparity.numerics.collectives.execute import arch
from moeparity.ops.attribute import RefusedError
from moeparity.plan.schedule.steps import Schedule
from moeparity.plan.sides import CANDIDATE, REFERENCE, Side
from moeparity.plan.toggles import Toggle, mixed

SHADOW: Final = "one side's numerics on the other's inputs"
"""The name of the walker that shows each node's local error."""

Kind = Literal["alone", "restored", "candidate", "floor", "record", "other record", "arrival", "update"]


@dataclass(frozen=True, slots=True)
class TrialKey:
    """The key of a trial, by its kind.

    alone: the reference with the candidate's value of the toggle `of`. restored: the candidate with the reference's
    value.
    candidate: the candidate itself, with forced routes. floor: the reference under the choice that `of` names. record:
    the side that stands for the engine, under such a choice. other record: the other side, if its engine left a record
    too. arrival: the side `of`, with its sums in order of arrival in another `draw`. update: a pass between a rollout
    across updates and its trainer, of tokens whose weights are `draw` updates back. forced: how much of the reference's
    routes its routers take over.
    """

    kind: Kind
    of: str = ""
    draw: int = 0
    forced: Routes = NATURAL


def in_words(key: TrialKey) -> str:
    """What a trial is, in words."""
    draw = {"arrival": f", draw {key.draw}", "update": f", weights {key.draw} back"}.get(key.kind, "")
    forced = "" if key.forced == NATURAL else f", with the reference's {key.forced} forced"
    return " ".join(filter(None, (key.kind, key.of))) + draw + forced


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A mixture to run: the side, the side from which it was made, and the routes forced on it. schedule: steps other
    than the side's settings make. keys_of: as in `Walker`.
    """

    side: Side
    base: str
    routes: Forced | None = None
    schedule: Schedule | None = None
    keys_of: Mapping[int, Name] = field(default_factory=dict)


Trials = dict[TrialKey, Trial]

Refusals = dict[TrialKey, str]
"""Trials that can't run, with the node, the choice that an op refuses there, and why."""


def alone(toggle: Toggle) -> TrialKey:
    """The trial in which the reference has this one choice of the candidate."""
    return TrialKey("alone", toggle.name)


def restored(toggle: Toggle) -> TrialKey:
    """The trial in which the candidate has this one choice of the reference."""
    return TrialKey("restored", toggle.name)


def toggle_trials(plan: Plan, toggles: Iterable[Toggle]) -> tuple[Trials, Refusals]:
    """The two trials of every toggle, and the refusals of those that no op can run."""
    trials: Trials = {}
    refused: Refusals = {}
    sides = plan.sides
    for toggle in toggles:
        for key, base, source in ((alone(toggle), REFERENCE, CANDIDATE), (restored(toggle), CANDIDATE, REFERENCE)):
            try:
                trials[key] = Trial(side=mixed(sides[base], [toggle], sides[source]), base=base)
            except SpecError as error:
                refused[key] = why(error)
    return trials, refused


def why(error: SpecError) -> str:
    """Why a mixture can't run. If an op refuses a choice, who set it is left out: it comes from one of the sides."""
    return error.where if isinstance(error, RefusedError) else str(error)


def refuse_impossible(plan: Plan) -> None:
    """Raises SpecError for a side that an op can't run."""
    for refused in impossible(plan, sides(plan)).values():
        raise refused[0]


def impossible(plan: Plan, walkers: Sequence[Walker]) -> Mapping[Name, tuple[RefusedError, ...]]:
    """What ops refuse of these walkers' calls on the recipe's tokens, tokens still to be sampled included."""
    return refusals(walkers, plan.model.graph, plan.grid.sequences, plan.grid.length, arch(plan.model.device))


def sides(plan: Plan) -> list[Walker]:
    """Walkers of both sides, which run in every pass; for a recorded candidate, of its recorded values."""
    return [walker(plan, REFERENCE, plan.reference), candidate(plan)]


def candidate(plan: Plan) -> Walker:
    """The candidate, or a walker of its recorded values."""
    own_walker = walker(plan, CANDIDATE, plan.candidate)
    return own_walker if plan.recorded is None else replace(own_walker, grafts=plan.recorded.grafts, shows="recorded")


def shadow(plan: Plan) -> Walker | None:
    """The walker that shows each node's local error: the candidate's numerics on the reference's inputs. For a trace,
    which has no numerics to run, it is the reference's numerics on the recorded inputs. None if nothing is tried.
    """
    if plan.recorded is not None:
        return replace(walker(plan, SHADOW, plan.reference), grafts=plan.recorded.grafts)
    return walker(plan, SHADOW, plan.candidate, inputs_of=REFERENCE) if plan.attribution else None


def of_trial(plan: Plan, key: TrialKey, trial: Trial) -> Walker:
    """The walker of a trial. Raises SpecError."""
    if trial.schedule is None:
        return walker(plan, key, trial.side, routes=trial.routes)
    return replace(walker(plan, key, trial.side), schedule=trial.schedule, keys_of=trial.keys_of)


def walker(
    plan: Plan, name: Name, side: Side, *, inputs_of: Name | None = None, routes: Forced | None = None
) -> Walker:
    """A walker that runs a side, or a mixture, of a plan in a pass. Raises SpecError."""
    return Walker(
        name=name,
        plan=side.plan,
        schedule=plan.walked(side),
        inputs_of=inputs_of,
        routes=routes,
        functions=plan.functions,
        prompts=plan.grid.prompts,
        requests=plan.tokens.requests,
    )
