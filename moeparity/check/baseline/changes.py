"""Choices, evidence and names of nodes that are other than what was kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

from moeparity.check.baseline.lock import Bits, Entry, Side
from moeparity.output.findings import Status
from moeparity.output.words import quantity
from moeparity.plan.choices import ABSENT
from moeparity.plan.evidence import LOWEST_FIRST
from moeparity.plan.sides import SIDES

T = TypeVar("T")
_NOTHING = [ABSENT, ABSENT]


def pairs(kept: Entry, now: Entry, side: Side, node: str) -> list[tuple[str, str, str]]:
    """Every choice of a node with its value as it was kept and as it is."""
    before, after = (entry.choices.get(side, {}).get(node, {}) for entry in (kept, now))
    names = dict.fromkeys((*before, *after))
    return [(name, before.get(name, _NOTHING)[0], after.get(name, _NOTHING)[0]) for name in names]


def renamed(kept: Entry, now: Entry, machine: str) -> dict[str, str]:
    """Nodes that are gone, with the one new node that has the same choices, weights and, where known, bits."""
    gone, new = other_nodes(kept, now)
    twins = {node: [other for other in new if _alike(kept, node, now, other, machine)] for node in gone}
    once = {node: others[0] for node, others in twins.items() if len(others) == 1}
    return {node: other for node, other in once.items() if list(once.values()).count(other) == 1}


def _alike(kept: Entry, node: str, now: Entry, other: str, machine: str) -> bool:
    if kept.weights.get(node) != now.weights.get(other):
        return False
    if machine in kept.machines and machine in now.machines:
        before, after = kept.machines[machine], now.machines[machine]
        if any(getattr(before, side).get(node) != getattr(after, side).get(other) for side in SIDES):
            return False
    return all(kept.choices.get(side, {}).get(node) == now.choices[side].get(other) for side in SIDES)


def under_names(kept: Entry, names: Mapping[str, str]) -> Entry:
    """An entry with its nodes called as they are now."""

    def called(of: Mapping[str, T]) -> dict[str, T]:
        return {names.get(node, node): item for node, item in of.items()}

    machines = {
        machine: Bits(tokens=bits.tokens, reference=called(bits.reference), candidate=called(bits.candidate))
        for machine, bits in kept.machines.items()
    }
    choices = {side: called(nodes) for side, nodes in kept.choices.items()}
    return kept.model_copy(update={"weights": called(kept.weights), "choices": choices, "machines": machines})


def other_nodes(kept: Entry, now: Entry) -> tuple[list[str], list[str]]:
    """Nodes that are gone, and nodes that are new."""
    before = {node for side in kept.choices.values() for node in side}
    after = dict.fromkeys(node for side in now.choices.values() for node in side)
    gone = [node for node in sorted(before) if node not in after]
    return gone, [node for node in after if node not in before]


def changed_choices(kept: Entry, now: Entry, side: Side, origins: Mapping[tuple[str, str], str]) -> Iterator[str]:
    """A line for every value that became another, at one node or at several."""
    nodes_of: dict[tuple[str, str, str], list[str]] = {}
    for node, name, before, after in _both(kept, now, side):
        if before[0] != after[0]:
            nodes_of.setdefault((name, before[0], after[0]), []).append(node)
    for (name, old, new), nodes in nodes_of.items():
        origin = origins.get((nodes[0], name), "")
        place = f", set by {origin}" if origin else ""
        yield f"{nodes[0]} {name}: {old} -> {new}{_and_more(nodes)}{place}"


def changed_evidence(kept: Entry, now: Entry, side: Side) -> Iterator[tuple[Status, str]]:
    """A line for every level of evidence that became another: one that is less sure is not what was kept."""
    nodes_of: dict[tuple[str, str, str], list[str]] = {}
    for node, name, before, after in _both(kept, now, side):
        if before[0] == after[0] and before[1] != after[1]:
            nodes_of.setdefault((name, before[1], after[1]), []).append(node)
    for (name, old, new), nodes in nodes_of.items():
        surer = old in LOWEST_FIRST and new in LOWEST_FIRST and LOWEST_FIRST.index(new) > LOWEST_FIRST.index(old)
        words = f"{nodes[0]} {name}: {old} -> {new}{_and_more(nodes)}"
        yield ("ok", f"surer: {words}") if surer else ("fail", words)


def _both(kept: Entry, now: Entry, side: Side) -> Iterator[tuple[str, str, list[str], list[str]]]:
    """Of nodes that are in both: node, choice, and its value with evidence as kept and as it is."""
    afters = now.choices[side]
    for node, choices in kept.choices.get(side, {}).items():
        if node in afters:
            for name in dict.fromkeys((*choices, *afters[node])):
                yield node, name, choices.get(name, _NOTHING), afters[node].get(name, _NOTHING)


def _and_more(nodes: list[str]) -> str:
    return f" and at {quantity(len(nodes) - 1, 'more node')}" if len(nodes) > 1 else ""
