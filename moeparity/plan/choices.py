"""The choices that take effect at a node of bound plans, as words: value, origin, evidence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from moeparity.ops.attribute import EDGE
from moeparity.plan.address import role
from moeparity.plan.bound import Plan
from moeparity.plan.difference import by_phase
from moeparity.plan.graph import Node
from moeparity.plan.rule import BY_RECIPE, UNKNOWN
from moeparity.plan.schedule.cases import Case
from moeparity.plan.setting import FAULT, Setting

ABSENT = "-"
"""Shown in place of a value where a choice takes no effect on a side."""

Entry = tuple[str, str, str]
"""The value of a choice on one side in one phase, where it was set, and how sure that is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One choice at one node: its value on each side (`-`: no effect), by phase where phases differ, where the values
    were set, and how sure they are. `by_side` has origin and evidence of each side.
    """

    name: str
    values: tuple[str, ...]
    origin: str
    evidence: str
    by_side: tuple[tuple[str, str], ...]


def choices(node: Node, plans: Sequence[Plan]) -> Iterator[Choice]:
    """The choices that take effect on a node on at least one side, in at least one phase: attributes, sites on edges,
    and a user's function.
    """
    active = [_active_by_phase(node, plan) for plan in plans]
    names = dict.fromkeys(name for phases in active for values in phases.values() for name in values)
    for name in names:
        entries = tuple(tuple((phase, values.get(name)) for phase, values in phases.items()) for phases in active)
        choice = _choice(name, _uncut(name, node), entries)
        if choice is not None:
            yield choice


@lru_cache(maxsize=4096)
def _choice(name: str, uncut: str | None, entries: tuple[tuple[tuple[Case, Entry | None], ...], ...]) -> Choice | None:
    """One choice, made from its entry in each phase on each side; None where all its values are `uncut`. Cached, since
    many nodes have equal entries.
    """
    values = [{phase: entry[0] if entry else ABSENT for phase, entry in side} for side in entries]
    if {value for side in values for value in side.values()} == {uncut}:
        return None
    of_sides = [[entry for _, entry in side if entry is not None] for side in entries]
    origin, evidence = _stands_on([entry for side in of_sides for entry in side])
    return Choice(
        name=name,
        values=tuple(map(by_phase, values)),
        origin=origin,
        evidence=evidence,
        by_side=tuple(map(_stands_on, of_sides)),
    )


def _stands_on(entries: Sequence[Entry]) -> tuple[str, str]:
    """Where values were set, and how sure they are, each text once."""
    origin, evidence = ("; ".join(dict.fromkeys(entry[i] for entry in entries)) for i in (1, 2))
    return origin, evidence


def _active_by_phase(node: Node, plan: Plan) -> dict[Case, dict[str, Entry]]:
    """What takes effect on a node in each phase; worked out once for phases with equal settings."""
    values = {id(in_phase): _active(node, in_phase) for in_phase in plan.distinct}
    return {phase: values[id(plan.at_phase(phase))] for phase in plan.phases}


def _active(node: Node, plan: Plan) -> dict[str, Entry]:
    """What takes effect on a node on one side in one phase."""
    region = plan.replaced().get(node.name)
    if region is not None:
        return {"impl": (region.call, f"{region.where} ({region.rule.label})", region.rule.level)}
    values, fault = plan.active(node), plan.settings[node.name, FAULT]
    entries = {FAULT: (str(fault.value), fault.origin, fault.level or BY_RECIPE)} if fault.value else {}
    attributes = (attribute for attribute in plan.as_run(node).attributes if attribute.name in values)
    entries |= {a.name: _entry(str(values[a.name]), plan.setting(node, a)) for a in attributes}
    for consumer, (site, value) in plan.edges(node).items():
        name = f"{site}{EDGE}{role(consumer).rpartition('.')[2]}"
        entries[name] = _entry(str(value), plan.settings[node.name, f"{site}{EDGE}{consumer}"])
    return entries


def _entry(value: str, setting: Setting) -> Entry:
    return value, setting.origin, setting.level or UNKNOWN


def _uncut(name: str, node: Node) -> str | None:
    """The value that says that a node is not cut over ranks and ends no stage: not worth showing, as most nodes have
    it. None where a choice has no such value.
    """
    attribute = node.op.attribute(name)
    if attribute is None:
        return None
    is_cut = attribute.least is not None or (attribute.kind == "placement" and attribute.needs == "always")
    return str(attribute.default) if is_cut else None
