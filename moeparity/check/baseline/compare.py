"""A run held to what was kept of it: a finding for each budget, and one for each thing that is another now."""

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
"""How what is said of a baseline begins."""
BITS = f"{KEPT} bits"
_PARTS = ", "
"""Between instruction set, torch, threads and device of a machine."""
_MOST = 3
"""Nodes that a line names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Now:
    """The run that is held to an entry: its own entry, the measured values of metrics, the key of this machine, and by
    side, node and choice where that was set. `unsteady` names a user's function that is not deterministic.
    """

    entry: Entry
    measured: Mapping[str, float]
    machine: str
    origins: Mapping[str, Mapping[tuple[str, str], str]]
    graph: Graph
    unsteady: str = ""


def compare(kept: Entry, now: Now) -> list[Finding]:
    """What is as it was kept, and what is not."""
    names = renamed(kept, now.entry, now.machine)
    renames = (f"{before} is called {after}, with the same choices and weights" for before, after in names.items())
    kept = under_names(kept, names)
    return [
        *_budgets(kept, now),
        *_sides(kept, now.entry),
        *_inputs(kept, now.entry),
        *(_finding(f"{KEPT} nodes", "fail", words) for words in renames),
        *_nodes(kept, now),
        *_bits(kept, now),
    ]


def _budgets(kept: Entry, now: Now) -> Iterator[Finding]:
    for name, budget in kept.budgets.items():
        value = now.measured.get(name)
        if value is None:
            yield _finding(f"{KEPT} {name} {budget}", "fail", "this recipe has no such metric; `--update` drops it")
        else:
            yield _finding(f"{KEPT} {name} {budget}", "ok" if budget.holds(value) else "fail", f"{value:.6g}")


def _sides(kept: Entry, now: Entry) -> Iterator[Finding]:
    for side, words in now.sides.items():
        before = kept.sides.get(side, "nothing")
        status: Status = "ok" if words == before else "fail"
        yield _finding(f"{KEPT} {side}", status, words if status == "ok" else f"{before} -> {words}")


def _inputs(kept: Entry, now: Entry) -> Iterator[Finding]:
    """Weights, config.json and tokens."""
    others = [node for node, digest in now.weights.items() if kept.weights.get(node) != digest and node != CONFIG]
    others += [node for node in kept.weights if node not in now.weights and node != CONFIG]
    config = [CONFIG] if kept.weights.get(CONFIG) != now.weights.get(CONFIG) else []
    if others or config:
        of = f"({len(others)} of {quantity(len(now.weights) - 1, 'node')})"
        words = [f"other weights in {few(others, _MOST)} {of}"] if others else []
        words += [f"another {name}" for name in config]
        yield _finding(f"{KEPT} checkpoint", "fail", f"another checkpoint: {'; '.join(words)}")
    else:
        yield _finding(f"{KEPT} checkpoint", "ok", f"the weights of {quantity(len(now.weights) - 1, 'node')}")
    if kept.tokens == now.tokens:
        yield _finding(f"{KEPT} tokens", "ok", "the same" if now.tokens else "sampled by the run")
    else:
        yield _finding(f"{KEPT} tokens", "fail", "other tokens, masks or records")


def _nodes(kept: Entry, now: Now) -> Iterator[Finding]:
    gone, new = other_nodes(kept, now.entry)
    if gone:
        yield _finding(f"{KEPT} nodes", "fail", f"no longer there: {few(gone, _MOST)}")
    if new:
        yield _finding(f"{KEPT} nodes", "fail", f"new: {few(new, _MOST)}")
    for side in SIDES:
        changes = list(changed_choices(kept, now.entry, side, now.origins[side]))
        levels = list(changed_evidence(kept, now.entry, side))
        yield from (_finding(f"{KEPT} choices of {side}", "fail", words) for words in changes)
        yield from (_finding(f"{KEPT} evidence of {side}", status, words) for status, words in levels)
        if not changes and not any(status == "fail" for status, _ in levels):
            count = sum(map(len, now.entry.choices[side].values()))
            yield _finding(f"{KEPT} choices of {side}", "ok", f"{counted(count, 'choice')} and their evidence")


def _bits(kept: Entry, now: Now) -> Iterator[Finding]:
    reason = _unjudged(kept, now)
    if reason:
        yield _finding(BITS, "not judged", reason)
        return
    before, after = kept.machines[now.machine], now.entry.machines[now.machine]
    if before.tokens != after.tokens:
        yield _finding(BITS, "fail", "the run samples other tokens, so that no value can be compared")
        return
    for side in SIDES:
        digests, values = getattr(before, side), getattr(after, side)
        others = [node for node in values if node in digests and digests[node] != values[node]]
        unknown = [node for node in now.entry.choices[side] if (node in values) != (node in digests)]
        if others:
            yield _finding(f"{BITS} of {side}", "fail", _changed_bits(others, values, side, kept, now))
        elif unknown:
            yield _finding(f"{BITS} of {side}", "fail", f"no digest to hold {few(unknown, _MOST)} to")
        else:
            yield _finding(f"{BITS} of {side}", "ok", quantity(len(values), "node"))


def _unjudged(kept: Entry, now: Now) -> str:
    """Why the bits of values cannot be held to anything; empty where they can."""
    if now.unsteady:
        return f"not deterministic: {now.unsteady}"
    if now.entry.weights != kept.weights or now.entry.tokens != kept.tokens:
        return "another checkpoint or other tokens: values cannot be compared"
    if now.machine not in kept.machines:
        return (
            f"nothing is kept of this machine: {_machine(kept, now.machine)}. Budgets and choices are judged; "
            "`--update` here adds it"
        )
    return ""


def _machine(kept: Entry, here: str) -> str:
    """What of this machine is another than what was kept of the nearest one."""
    ours = here.split(_PARTS)
    others = [machine.split(_PARTS) for machine in sorted(kept.machines)]
    alike = [parts for parts in others if len(parts) == len(ours)]
    if not alike:
        return f"here {here}, kept {'; '.join(sorted(kept.machines)) or 'of none'}"
    nearest = min(alike, key=lambda parts: sum(a != b for a, b in zip(parts, ours, strict=True)))
    pairs = [(a, b) for a, b in zip(nearest, ours, strict=True) if a != b]
    return f"kept of {_PARTS.join(a for a, _ in pairs)}, here {_PARTS.join(b for _, b in pairs)}"


def _changed_bits(others: list[str], values: Mapping[str, str], side: Side, kept: Entry, now: Now) -> str:
    """How many nodes have other bits, where that starts, and which choice is another there."""
    makers = {value: node.name for node in now.graph.nodes for value in node.values}
    reads = {node.name: {makers.get(value) for value in node.inputs} for node in now.graph.nodes}
    starts = [node for node in others if reads[node].isdisjoint(others)]
    causes = (_cause(node, side, kept, now) for node in starts[:_MOST])
    more = f" and {len(starts) - _MOST} more" if len(starts) > _MOST else ""
    return f"{len(others)} of {quantity(len(values), 'node')} have other bits, from {', '.join(causes)}{more} on"


def _cause(node: str, side: Side, kept: Entry, now: Now) -> str:
    choices = pairs(kept, now.entry, side, node)
    changes = [f"{name}: {before} -> {after}" for name, before, after in choices if before != after]
    return f"{node} ({'; '.join(changes) or 'no choice of it changed'})"


def _finding(expectation: str, status: Status, found: str) -> Finding:
    return Finding(expectation=expectation, status=status, found=found)
