"""Differences between a kept entry and a new one: choices, evidence and names of nodes."""

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


def pairs(lock_entry: Entry, new_entry: Entry, side: Side, node: str) -> list[tuple[str, str, str]]:
    """Every choice of a node that both have, as (name, kept value, new value)."""
    before, after = (entry.choices.get(side, {}).get(node, {}) for entry in (lock_entry, new_entry))
    names = dict.fromkeys((*before, *after))
    return [(name, before.get(name, _NOTHING)[0], after.get(name, _NOTHING)[0]) for name in names]


def renamed(lock_entry: Entry, new_entry: Entry, machine: str) -> dict[str, str]:
    """Node that is gone -> the only new node with the same choices, weights and, if known, bits."""
    gone, new = other_nodes(lock_entry, new_entry)
    twins = {
        node: [new_node for new_node in new if _alike(lock_entry, node, new_entry, new_node, machine)] for node in gone
    }
    once = {node: others[0] for node, others in twins.items() if len(others) == 1}
    return {node: new_node for node, new_node in once.items() if list(once.values()).count(new_node) == 1}


def _alike(lock_entry: Entry, node: str, new_entry: Entry, new_node: str, machine: str) -> bool:
    if lock_entry.weights.get(node) != new_entry.weights.get(new_node):
        return False
    if machine in lock_entry.machines and machine in new_entry.machines:
        before, after = lock_entry.machines[machine], new_entry.machines[machine]
        if any(getattr(before, side).get(node) != getattr(after, side).get(new_node) for side in SIDES):
            return False
    return all(lock_entry.choices.get(side, {}).get(node) == new_entry.choices[side].get(new_node) for side in SIDES)


def under_names(lock_entry: Entry, names: Mapping[str, str]) -> Entry:
    """The entry with its nodes under their new names."""

    def called(of: Mapping[str, T]) -> dict[str, T]:
        return {names.get(node, node): item for node, item in of.items()}

    machines = {
        machine: Bits(tokens=bits.tokens, reference=called(bits.reference), candidate=called(bits.candidate))
        for machine, bits in lock_entry.machines.items()
    }
    choices = {side: called(nodes) for side, nodes in lock_entry.choices.items()}
    return lock_entry.model_copy(
        update={"weights": called(lock_entry.weights), "choices": choices, "machines": machines}
    )


def other_nodes(lock_entry: Entry, new_entry: Entry) -> tuple[list[str], list[str]]:
    """Nodes that are gone, and nodes that are new."""
    before = {node for side in lock_entry.choices.values() for node in side}
    after = dict.fromkeys(node for side in new_entry.choices.values() for node in side)
    gone = [node for node in sorted(before) if node not in after]
    return gone, [node for node in after if node not in before]


def changed_choices(
    lock_entry: Entry, new_entry: Entry, side: Side, origins: Mapping[tuple[str, str], str]
) -> Iterator[str]:
    """A line for every value that changed, at one node or at several."""
    nodes_of: dict[tuple[str, str, str], list[str]] = {}
    for node, name, before, after in _shared_choices(lock_entry, new_entry, side):
        if before[0] != after[0]:
            nodes_of.setdefault((name, before[0], after[0]), []).append(node)
    for (name, old, new), nodes in nodes_of.items():
        origin = origins.get((nodes[0], name), "")
        place = f", set by {origin}" if origin else ""
        yield f"{nodes[0]} {name}: {old} -> {new}{_and_more(nodes)}{place}"


def changed_evidence(lock_entry: Entry, new_entry: Entry, side: Side) -> Iterator[tuple[Status, str]]:
    """A line for every level of evidence that changed; a level that is less sure than the kept one fails."""
    nodes_of: dict[tuple[str, str, str], list[str]] = {}
    for node, name, before, after in _shared_choices(lock_entry, new_entry, side):
        if before[0] == after[0] and before[1] != after[1]:
            nodes_of.setdefault((name, before[1], after[1]), []).append(node)
    for (name, old, new), nodes in nodes_of.items():
        surer = old in LOWEST_FIRST and new in LOWEST_FIRST and LOWEST_FIRST.index(new) > LOWEST_FIRST.index(old)
        words = f"{nodes[0]} {name}: {old} -> {new}{_and_more(nodes)}"
        yield ("ok", f"surer: {words}") if surer else ("fail", words)


def _shared_choices(lock_entry: Entry, new_entry: Entry, side: Side) -> Iterator[tuple[str, str, list[str], list[str]]]:
    """For nodes in both entries: node, choice, and its [value, evidence] as kept and now."""
    afters = new_entry.choices[side]
    for node, choices in lock_entry.choices.get(side, {}).items():
        if node in afters:
            for name in dict.fromkeys((*choices, *afters[node])):
                yield node, name, choices.get(name, _NOTHING), afters[node].get(name, _NOTHING)


def _and_more(nodes: list[str]) -> str:
    return f" and at {quantity(len(nodes) - 1, 'more node')}" if len(nodes) > 1 else ""
