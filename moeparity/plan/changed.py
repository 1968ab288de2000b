"""Plans derived from an existing plan by changing some settings; only what the changes affect is worked out again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

from moeparity.errors import SpecError, listed
from moeparity.plan.bound import Plan
from moeparity.plan.faults.fault import Planted
from moeparity.plan.graph import Graph
from moeparity.plan.region import Region
from moeparity.plan.schedule.cases import Case
from moeparity.plan.setting import ByPhase, Place, Setting


def with_settings(plan: Plan, places: Iterable[Place], source: Plan) -> Plan:
    """A plan with the settings at `places` taken from `source`, in all phases. Raises SpecError, ValueError."""
    return with_settings_in(plan, dict.fromkeys(plan.phases, tuple(places)), source)


def with_settings_in(plan: Plan, places_of: Mapping[Case, Iterable[Place]], source: Plan) -> Plan:
    """A plan with the settings at some places of each phase taken from `source`. Raises SpecError, ValueError.

    `source` must have been bound for the same phases.
    """
    changes: dict[Case, Mapping[Place, Setting]] = {}
    for phase in plan.phases:
        theirs = source.at_phase(phase).written
        changes[phase] = {place: theirs[place] for place in places_of.get(phase, ())}
    return _changed(plan, changes, {**plan.regions, **source.regions}, {**plan.faults, **source.faults})


def in_all_phases(plan: Plan, settings: Mapping[Place, Setting]) -> Plan:
    """A plan with these settings in all phases. Raises SpecError."""
    return in_phases(plan, dict.fromkeys(plan.phases, settings))


def in_phases(plan: Plan, changes: ByPhase) -> Plan:
    """A plan with other settings in some phases. Raises SpecError."""
    return _changed(plan, changes, plan.regions, plan.faults)


def with_planted(plan: Plan, faults: Mapping[str, tuple[Planted, ...]], settings: Mapping[Place, Setting]) -> Plan:
    """A plan with further faults, and settings in all phases that name them by their texts. Raises SpecError."""
    return with_planted_in(plan, faults, dict.fromkeys(plan.phases, settings))


def with_planted_in(plan: Plan, faults: Mapping[str, tuple[Planted, ...]], settings: ByPhase) -> Plan:
    """The same with the settings of some phases. Raises SpecError."""
    return _changed(plan, settings, plan.regions, {**plan.faults, **faults})


def _changed(
    plan: Plan, changes: ByPhase, regions: Mapping[Place, Region], faults: Mapping[str, tuple[Planted, ...]]
) -> Plan:
    settings_of = {phase: {**plan.at_phase(phase).written, **changes.get(phase, {})} for phase in plan.phases}
    dormant_of = {phase: plan.at_phase(phase).dormant for phase in plan.phases}
    anew = {phase: changes.get(phase, {}) for phase in plan.phases}
    return plan_of(plan.graph, plan.dtype, settings_of, dormant_of, regions, faults, like=plan, anew=anew)


def plan_of(
    graph: Graph,
    dtype: str,
    settings_of: ByPhase,
    dormant_of: ByPhase,
    regions: Mapping[Place, Region],
    faults: Mapping[str, tuple[Planted, ...]],
    like: Plan | None = None,
    anew: ByPhase | None = None,
) -> Plan:
    """A plan of several phases; phases with equal settings share one plan. It may differ from `like` only at the places
    of `anew` (None: anywhere). Raises SpecError; where the error is not in the first phase, it names the phases.
    """
    (first, settings), *rest = settings_of.items()
    same = None if like is None else like.at_phase(first)
    make = partial(Plan.bound, graph, dtype, regions=regions, faults=faults)
    base = partial(make, settings=settings, dormant=dormant_of[first])
    groups: list[tuple[Case, ...]] = []
    of = {phase: (theirs, dormant_of[phase] if faults else {}) for phase, theirs in settings_of.items()}
    for phase, _ in rest:
        alike = next((i for i, group in enumerate(groups) if of[group[0]] == of[phase]), None)
        if alike is not None:
            groups[alike] += (phase,)
        elif of[phase] != of[first]:
            groups.append((phase,))
    others: dict[Case, Plan] = {}
    places = None if anew is None else anew[first]
    alone = base(like=same, anew=places) if groups else same
    for group in groups:
        earlier_plan = alone if like is None else like.at_phase(group[0])
        of_group = partial(make, settings=settings_of[group[0]], dormant=dormant_of[group[0]], phases=group)
        try:
            plan = of_group(like=earlier_plan, anew=None if anew is None else anew[group[0]])
        except SpecError as error:
            raise SpecError(f"{error} So it is in {listed(group)}.") from None
        others |= dict.fromkeys(group, plan)
    return base(phases=tuple(settings_of), others=others, like=alone, anew=() if groups else places)
