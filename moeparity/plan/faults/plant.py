"""Faults at the nodes of a plan: which are possible where, with which values, and a plan with one of them.

Searches use it so: `candidates` lists the faults to try at a node, `domain` and `start` say what to try for each free
value, `rewritten` gives the plan to run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from moeparity.ops.attribute import Value
from moeparity.plan.bound import Plan
from moeparity.plan.changed import with_planted
from moeparity.plan.faults.apply import applied, experts_of, ports_of, sibling, sits_at
from moeparity.plan.faults.fault import Fault, Planted, Values, planted, spelled
from moeparity.plan.faults.reader import shipped_faults
from moeparity.plan.graph import Graph, Node
from moeparity.plan.setting import FAULT, Setting
from moeparity.plan.spec.fault_schema import FreeValue

Domain = tuple[Value, ...] | None
"""The values to try; None: any number, which a search solves for, starting at `start`."""


def candidates(graph: Graph, node: Node) -> Iterator[Fault]:
    """Every shipped fault that is possible at a node and, for some choice of its free values, changes something there.

    `fault.free` are the free values; `domain` says what to try for each. A fault that needs another checkpoint is
    included: the `domain` of that value is empty, since the user has to give it.
    """
    yield from (fault for fault in shipped_faults().values() if is_possible(fault, graph, node))


def is_possible(fault: Fault, graph: Graph, node: Node) -> bool:
    """Whether a fault can be planted at a node and, for some choice of its free values, changes something there."""
    return sits_at(fault, graph, node) and _changes(graph, node, fault)


def domain(graph: Graph, node: Node, free: FreeValue) -> Domain:
    """What to try for a free value of a fault at a node; empty where only the user can give it."""
    if free.type == "expert":
        return tuple(range(experts_of(node)))
    if free.type == "layer":
        layers = (layer for layer in range(graph.whole.layers) if layer != node.layer)
        return tuple(layer for layer in layers if sibling(graph, node, layer) is not None)
    if free.type == "order":
        return tuple(_orders(experts_of(node)))
    if free.type in {"whole", "width"}:
        return tuple(free.tried)
    if free.type == "part":
        parts = (str(part) for part in free.tried if node.weights.keys() > {*ports_of(str(part))})
        return (*filter(None, [free.default]), *parts)
    return None if free.type == "number" else ()


def giving_width(graph: Graph, node: Node, width: int) -> Iterator[Planted]:
    """Faults whose only free value is a width, with that value at `width`, where this makes the first output of a node
    without weights `width` values wide.
    """
    for fault in candidates(graph, node):
        widths = [name for name, free in fault.free.items() if free.type == "width"]
        if len(fault.free) == len(widths) == 1:
            plant = planted(fault, {widths[0]: width})
            if width_of(applied(graph, node, (plant,))) == width:
                yield plant


def width_of(node: Node) -> int | None:
    """How many values per token a node's first output has; None where that depends on its inputs or weights."""
    is_alone = not node.weights and node.op.integers == node.op.inputs
    return node.op.memory.widths({}, node.params, ())[0] if is_alone else None


def start(node: Node, free: FreeValue) -> float:
    """The number at which a search starts: the node's own value where the fault rewrites a parameter."""
    value: Any = None
    if free.parameter is not None:
        name, _, key = free.parameter.partition(".")
        value = node.params.get(name)
        value = value.get(key) if key and isinstance(value, dict) else value
    return float(value if isinstance(value, (int, float)) else 1.0 if free.start is None else free.start)


def rewritten(plan: Plan, node: Node, fault: Fault, values: Values | None = None) -> Plan:
    """The plan with a fault at one of its nodes, added after those planted there already, in all its phases.

    `values` are the fault's free values. The setting at `(node, "fault")` then names the fault, and
    `plan.as_run(node)` is the node with its changed parameters, weights and edits: that node is what
    `engine.computation.op_numerics` runs and `WeightStore.node` reads weights for. Weights are still streamed (see
    `moeparity.plan.faults.apply`); tensors that a segment's `Loaded` does not hold are read when asked for
    (`Loaded.of`). An observer that tries many faults takes its weights from `loaded.beside()`, which frees the
    rewritten ones when it is dropped.

    Raises ValueError where a value is missing or unknown, SpecError where an op refuses what comes of it.
    """
    before = plan.faults.get(str(plan.settings[node.name, FAULT].value), ())
    plants = (*before, planted(fault, values or {}))
    text = spelled(plants)
    return with_planted(plan, {text: plants}, {(node.name, FAULT): Setting(value=text, rule=None)})


def _changes(graph: Graph, node: Node, fault: Fault) -> bool:
    """Whether a fault changes anything at a node, for some value of what it leaves open."""
    values: dict[str, Value] = {}
    for number, (name, free) in enumerate(fault.free.items()):
        options = domain(graph, node, free)
        if free.default is not None:
            continue
        if options is None:
            values[name] = start(node, free) * 2 + 1
        elif options:
            # Two free values of one type must differ: an expert that takes its own weights changes nothing.
            values[name] = options[-1 - number % len(options)]
        elif free.type == "checkpoint":
            values[name] = "another"
        else:
            return False
    return applied(graph, node, (planted(fault, values),)) is not node


def _orders(experts: int) -> Iterator[str]:
    """Orders of experts to try, as mixed-up ranks and loops make them: rotations, reverse, two neighbours exchanged."""
    numbers = list(range(experts))
    rotations = [numbers[shift:] + numbers[:shift] for shift in range(1, experts)]
    swaps = [[*numbers[:i], i + 1, i, *numbers[i + 2 :]] for i in range(experts - 1)]
    every = dict.fromkeys(" ".join(map(str, order)) for order in (*rotations, numbers[::-1], *swaps))
    yield from (order for order in every if order != " ".join(map(str, numbers)))
