"""Graph + profile + a variant's own settings -> Plan: frozen, every attribute with its value and origin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

from moeparity.errors import SpecError
from moeparity.plan import layered
from moeparity.plan.bound import Plan
from moeparity.plan.changed import plan_of
from moeparity.plan.cut import cut_by, refuse_other_phases
from moeparity.plan.engine_profile import Profile
from moeparity.plan.faults.fault import FaultyNode
from moeparity.plan.graph import Graph
from moeparity.plan.latest import Latest
from moeparity.plan.layered import Layered
from moeparity.plan.messages import RowMessage, refuse_other_messages
from moeparity.plan.region import Region
from moeparity.plan.rule import Rule
from moeparity.plan.schedule.cases import Case
from moeparity.plan.schedule.steps import FORWARD
from moeparity.plan.setting import ByPhase, Place, Setting


def bind(
    graph: Graph,
    profile: Profile,
    dtype: str,
    overrides: tuple[Rule, ...] = (),
    regions: Sequence[Region] = (),
    placement: tuple[Rule, ...] = (),
    over: tuple[Rule, ...] = (),
    phases: tuple[Case, ...] = (FORWARD,),
    faults: Sequence[FaultyNode] = (),
) -> Plan:
    """The plan of one variant. Where several set one place the later wins: op defaults, extended profiles, fusions,
    rules, `placement`, `overrides`, `over`.

    `phases` are all that occur in the schedules it may run under: its own, and in mixtures the other side's. What the
    plan says without naming a phase holds in the first. Phases are cut into cases where rules depend on numbers of
    rows or keys; two plans that are to be mixed must be cut into the same cases (`cut_by`).

    Raises SpecError where a value is not allowed, two rules of one layer disagree in a phase, two regions overlap or an
    override applies in none of the phases, GraphError where a `nodes` selector matches nothing.
    """
    message = RowMessage.of(graph, dtype, placement)
    rules, of_profile = (
        [tuple(chain.from_iterable(map(message.in_rows, layer))) for layer in layers]
        for layers in ((placement, overrides, over), profile.from_below)
    )
    of_faults = [faulty.rule for faulty in faults]
    phases = cut_by(graph, phases, (rule for layer in (*of_profile, *rules, of_faults) for rule in layer))
    for rule in (*overrides, *over):
        refuse_other_phases(rule, message.in_rows(rule), phases)
    base = _LATEST.of((graph, profile), (dtype, phases, message), lambda: _alone(graph, of_profile, dtype, phases))
    plan = base.plan
    if plan is None or any(rules) or regions or faults:
        of_phase = layered.in_phases(graph, base.of_phase, rules, regions, faults)
        plants = {faulty.text: faulty.plants for faulty in faults}
        by_end = {(region.nodes[-1], region.call): region for region in regions}
        plan = plan_of(graph, dtype, *_apart(of_phase), by_end, plants, like=base.plan)
    layers = chain.from_iterable((*profile.layers, overrides, over))
    written = (rule for rule in layers if any(row_rule.cases for row_rule in message.in_rows(rule)))
    refuse_other_messages(written, dtype, (sent for each in plan.distinct for sent in each.messages))
    return plan


def settings_of(graph: Graph, profile: Profile, dtype: str) -> Mapping[Place, Setting]:
    """The setting of every place in phase `forward`, by a profile alone; not checked for whether all ops can run it.

    Raises SpecError where two rules of one layer disagree, GraphError where a `nodes` selector matches nothing.
    """
    message = RowMessage.of(graph, dtype, ())
    layers = [[part for rule in layer for part in message.in_rows(rule)] for layer in profile.from_below]
    first, *_ = cut_by(graph, (FORWARD,), (rule for layer in layers for rule in layer))
    return layered.in_phases(graph, {first: layered.unset(graph, dtype)}, layers)[first].settings


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfProfile:
    """What a profile alone sets in each phase, and the plan of that; None where some op cannot run these settings."""

    of_phase: Mapping[Case, Layered]
    plan: Plan | None


# One profile and one graph are bound again and again: for each point of a sweep, each prefix, each side. The size of a
# row's message is part of the key, since rules with `bytes:` depend on it.
_LATEST: Final[Latest[_OfProfile]] = Latest(32)


def _alone(graph: Graph, layers: Sequence[Sequence[Rule]], dtype: str, phases: tuple[Case, ...]) -> _OfProfile:
    """The layers of a profile, in rows, bound to a graph by themselves. Raises SpecError, GraphError."""
    of_phase = layered.in_phases(graph, dict.fromkeys(phases, layered.unset(graph, dtype)), layers)
    settings_of, dormant_of = _apart(of_phase)
    try:
        return _OfProfile(of_phase=of_phase, plan=plan_of(graph, dtype, settings_of, dormant_of, {}, {}))
    except SpecError:
        # What is set on top of the profile may make it runnable.
        return _OfProfile(of_phase=of_phase, plan=None)


def _apart(of_phase: Mapping[Case, Layered]) -> tuple[ByPhase, ByPhase]:
    """The settings in each phase, and what is dormant there."""
    settings_of = {phase: phase_plan.settings for phase, phase_plan in of_phase.items()}
    return settings_of, {phase: phase_plan.dormant for phase, phase_plan in of_phase.items()}
