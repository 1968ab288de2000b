"""Compares a run with its entry: a finding for each budget, and one for each thing that changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from moeparity.check.baseline.changes import changed_choices, changed_evidence, other_nodes, pairs, renamed, under_names
from moeparity.check.baseline.entry import CONFIG
from moeparity.check.baseline.lock import Entry, Side
from moeparity.errors import counted
from moeparity.output.findings import Finding, Status
from moeparity.output.words import few, quantity
from moeparity.plan.graph import Graph
from moeparity.plan.sides import SIDES

KEPT = "kept"
"""How findings about a baseline begin."""
BITS = f"{KEPT} bits"
_PARTS = ", "
"""Separates instruction set, torch, threads and device in the key of a machine."""
_MOST = 3
"""A line names at most this many nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PresentRun:
    """A run to be compared with an entry.

    entry: its own entry. measured: values of metrics. machine: the key of this machine. origins: by side, then (node,
    choice), where the choice was set. unsteady: the user's function that is not deterministic; "" if there is none.
    """

    entry: Entry
    measured: Mapping[str, float]
    machine: str
    origins: Mapping[str, Mapping[tuple[str, str], str]]
    graph: Graph
    unsteady: str = ""


def compare(lock_entry: Entry, present: PresentRun) -> list[Finding]:
    """The findings: what is as it was kept, and what is not."""
    names = renamed(lock_entry, present.entry, present.machine)
    renames = (f"{before} is called {after}, with the same choices and weights" for before, after in names.items())
    lock_entry = under_names(lock_entry, names)
    return [
        *_budgets(lock_entry, present),
        *_sides(lock_entry, present.entry),
        *_inputs(lock_entry, present.entry),
        *(_finding(f"{KEPT} nodes", "fail", words) for words in renames),
        *_nodes(lock_entry, present),
        *_bits(lock_entry, present),
    ]


def _budgets(lock_entry: Entry, present: PresentRun) -> Iterator[Finding]:
    for name, budget in lock_entry.budgets.items():
        value = present.measured.get(name)
        if value is None:
            yield _finding(f"{KEPT} {name} {budget}", "fail", "this recipe has no such metric; `--update` drops it")
        else:
            yield _finding(f"{KEPT} {name} {budget}", "ok" if budget.holds(value) else "fail", f"{value:.6g}")


def _sides(lock_entry: Entry, new_entry: Entry) -> Iterator[Finding]:
    for side, words in new_entry.sides.items():
        before = lock_entry.sides.get(side, "nothing")
        status: Status = "ok" if words == before else "fail"
        yield _finding(f"{KEPT} {side}", status, words if status == "ok" else f"{before} -> {words}")


def _inputs(lock_entry: Entry, new_entry: Entry) -> Iterator[Finding]:
    """Weights, config.json and tokens."""
    others = [
        node for node, digest in new_entry.weights.items() if lock_entry.weights.get(node) != digest and node != CONFIG
    ]
    others += [node for node in lock_entry.weights if node not in new_entry.weights and node != CONFIG]
    config = [CONFIG] if lock_entry.weights.get(CONFIG) != new_entry.weights.get(CONFIG) else []
    if others or config:
        of = f"({len(others)} of {quantity(len(new_entry.weights) - 1, 'node')})"
        words = [f"other weights in {few(others, _MOST)} {of}"] if others else []
        words += [f"another {name}" for name in config]
        yield _finding(f"{KEPT} checkpoint", "fail", f"another checkpoint: {'; '.join(words)}")
    else:
        yield _finding(f"{KEPT} checkpoint", "ok", f"the weights of {quantity(len(new_entry.weights) - 1, 'node')}")
    if lock_entry.tokens == new_entry.tokens:
        yield _finding(f"{KEPT} tokens", "ok", "the same" if new_entry.tokens else "sampled by the run")
    else:
        yield _finding(f"{KEPT} tokens", "fail", "other tokens, masks or records")


def _nodes(lock_entry: Entry, present: PresentRun) -> Iterator[Finding]:
    gone, new = other_nodes(lock_entry, present.entry)
    if gone:
        yield _finding(f"{KEPT} nodes", "fail", f"no longer there: {few(gone, _MOST)}")
    if new:
        yield _finding(f"{KEPT} nodes", "fail", f"new: {few(new, _MOST)}")
    for side in SIDES:
        changes = list(changed_choices(lock_entry, present.entry, side, present.origins[side]))
        levels = list(changed_evidence(lock_entry, present.entry, side))
        yield from (_finding(f"{KEPT} choices of {side}", "fail", words) for words in changes)
        yield from (_finding(f"{KEPT} evidence of {side}", status, words) for status, words in levels)
        if not changes and not any(status == "fail" for status, _ in levels):
            count = sum(map(len, present.entry.choices[side].values()))
            yield _finding(f"{KEPT} choices of {side}", "ok", f"{counted(count, 'choice')} and their evidence")


def _bits(lock_entry: Entry, present: PresentRun) -> Iterator[Finding]:
    reason = _unjudged(lock_entry, present)
    if reason:
        yield _finding(BITS, "not judged", reason)
        return
    before, after = lock_entry.machines[present.machine], present.entry.machines[present.machine]
    if before.tokens != after.tokens:
        yield _finding(BITS, "fail", "the run samples other tokens, so that no value can be compared")
        return
    for side in SIDES:
        digests, values = getattr(before, side), getattr(after, side)
        others = [node for node in values if node in digests and digests[node] != values[node]]
        unknown = [node for node in present.entry.choices[side] if (node in values) != (node in digests)]
        if others:
            yield _finding(f"{BITS} of {side}", "fail", _changed_bits(others, values, side, lock_entry, present))
        elif unknown:
            yield _finding(f"{BITS} of {side}", "fail", f"no digest to hold {few(unknown, _MOST)} to")
        else:
            yield _finding(f"{BITS} of {side}", "ok", quantity(len(values), "node"))


def _unjudged(lock_entry: Entry, present: PresentRun) -> str:
    """Why the bits of values can't be compared; "" if they can."""
    if present.unsteady:
        return f"not deterministic: {present.unsteady}"
    if present.entry.weights != lock_entry.weights or present.entry.tokens != lock_entry.tokens:
        return "another checkpoint or other tokens: values cannot be compared"
    if present.machine not in lock_entry.machines:
        return (
            f"nothing is kept of this machine: {_machine(lock_entry, present.machine)}. Budgets and choices are "
            "judged; `--update` here adds it"
        )
    return ""


def _machine(lock_entry: Entry, machine_here: str) -> str:
    """In which parts this machine differs from the most similar one that was kept."""
    ours = machine_here.split(_PARTS)
    others = [machine.split(_PARTS) for machine in sorted(lock_entry.machines)]
    alike = [parts for parts in others if len(parts) == len(ours)]
    if not alike:
        return f"here {machine_here}, kept {'; '.join(sorted(lock_entry.machines)) or 'of none'}"
    nearest = min(alike, key=lambda parts: sum(a != b for a, b in zip(parts, ours, strict=True)))
    pairs = [(a, b) for a, b in zip(nearest, ours, strict=True) if a != b]
    return f"kept of {_PARTS.join(a for a, _ in pairs)}, here {_PARTS.join(b for _, b in pairs)}"


def _changed_bits(
    others: list[str], values: Mapping[str, str], side: Side, lock_entry: Entry, present: PresentRun
) -> str:
    """How many nodes have other bits, where that starts, and which choice changed there."""
    makers = {value: node.name for node in present.graph.nodes for value in node.values}
    reads = {node.name: {makers.get(value) for value in node.inputs} for node in present.graph.nodes}
    starts = [node for node in others if reads[node].isdisjoint(others)]
    causes = (_cause(node, side, lock_entry, present) for node in starts[:_MOST])
    more = f" and {len(starts) - _MOST} more" if len(starts) > _MOST else ""
    return f"{len(others)} of {quantity(len(values), 'node')} have other bits, from {', '.join(causes)}{more} on"


def _cause(node: str, side: Side, lock_entry: Entry, present: PresentRun) -> str:
    choices = pairs(lock_entry, present.entry, side, node)
    changes = [f"{name}: {before} -> {after}" for name, before, after in choices if before != after]
    return f"{node} ({'; '.join(changes) or 'no choice of it changed'})"


def _finding(expectation: str, status: Status, words: str) -> Finding:
    return Finding(expectation=expectation, status=status, found=words)
