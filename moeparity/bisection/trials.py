"""The trials of a pass: which mixtures run beside both sides, and their keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from moeparity.bisection.study import Study
from moeparity.engine.refusals import refusals
from moeparity.engine.routes import NATURAL, Forced, Routes
from moeparity.engine.walker import Walker, WalkerName
from moeparity.errors import SpecError
from moeparity.numerics.collectives.execute import arch
from moeparity.ops.attribute import RefusedError
from moeparity.plan.schedule.steps import Schedule
from moeparity.plan.sides import CANDIDATE, REFERENCE, Side
from moeparity.plan.toggles import Toggle, mixed

SHADOW: Final = "one side's numerics on the other's inputs"
"""The name of the walker that shows each node's local error."""

TrialKind = Literal["alone", "restored", "candidate", "floor", "record", "other record", "arrival", "update"]


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

    kind: TrialKind
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
    keys_of: Mapping[int, WalkerName] = field(default_factory=dict)


Trials = dict[TrialKey, Trial]

Refusals = dict[TrialKey, str]
"""Trials that can't run, with the node, the choice that an op refuses there, and why."""


def alone(toggle: Toggle) -> TrialKey:
    """The trial in which the reference has this one choice of the candidate."""
    return TrialKey("alone", toggle.name)


def restored(toggle: Toggle) -> TrialKey:
    """The trial in which the candidate has this one choice of the reference."""
    return TrialKey("restored", toggle.name)


def toggle_trials(study: Study, toggles: Iterable[Toggle]) -> tuple[Trials, Refusals]:
    """The two trials of every toggle, and the refusals of those that no op can run."""
    trials: Trials = {}
    refused: Refusals = {}
    sides = study.sides
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


def refuse_impossible(study: Study) -> None:
    """Raises SpecError for a side that an op can't run."""
    for refused in impossible(study, sides(study)).values():
        raise refused[0]


def impossible(study: Study, walkers: Sequence[Walker]) -> Mapping[WalkerName, tuple[RefusedError, ...]]:
    """What ops refuse of these walkers' calls on the recipe's tokens, tokens still to be sampled included."""
    return refusals(walkers, study.model.graph, study.grid.sequences, study.grid.length, arch(study.model.device))


def sides(study: Study) -> list[Walker]:
    """Walkers of both sides, which run in every pass; for a recorded candidate, of its recorded values."""
    return [walker(study, REFERENCE, study.reference), candidate(study)]


def candidate(study: Study) -> Walker:
    """The candidate, or a walker of its recorded values."""
    own_walker = walker(study, CANDIDATE, study.candidate)
    return own_walker if study.recorded is None else replace(own_walker, grafts=study.recorded.grafts, shows="recorded")


def shadow(study: Study) -> Walker | None:
    """The walker that shows each node's local error: the candidate's numerics on the reference's inputs. For a trace,
    which has no numerics to run, it is the reference's numerics on the recorded inputs. None if nothing is tried.
    """
    if study.recorded is not None:
        return replace(walker(study, SHADOW, study.reference), grafts=study.recorded.grafts)
    return walker(study, SHADOW, study.candidate, inputs_of=REFERENCE) if study.attribution else None


def of_trial(study: Study, key: TrialKey, trial: Trial) -> Walker:
    """The walker of a trial. Raises SpecError."""
    if trial.schedule is None:
        return walker(study, key, trial.side, routes=trial.routes)
    return replace(walker(study, key, trial.side), schedule=trial.schedule, keys_of=trial.keys_of)


def walker(
    study: Study, name: WalkerName, side: Side, *, inputs_of: WalkerName | None = None, routes: Forced | None = None
) -> Walker:
    """A walker that runs a side, or a mixture, of a study in a pass. Raises SpecError."""
    return Walker(
        name=name,
        plan=side.plan,
        schedule=study.walked(side),
        inputs_of=inputs_of,
        routes=routes,
        functions=study.functions,
        prompts=study.grid.prompts,
        requests=study.tokens.requests,
    )
