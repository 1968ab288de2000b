"""Faults at the nodes of a plan: which can sit where, with which values, and a plan with one of them.

The interface of searches: `candidates` names what may be tried at a node, `domain` and `start` say of each free value
what to try, `rewritten` gives the plan to run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from moeparity.ops.attribute import Value
from moeparity.plan.bound import BoundGraph
from moeparity.plan.changed import with_planted
from moeparity.plan.faults.apply import applied, experts_of, ports_of, sibling, sits_at
from moeparity.plan.faults.fault import Fault, Planted, Values, planted, spelled
from moeparity.plan.faults.reader import shipped_faults
from moeparity.plan.graph import Graph, Node
from moeparity.plan.setting import FAULT, Setting
from moeparity.plan.spec.fault_schema import FreeValue

Domain = tuple[Value, ...] | None
"""The values to be tried; None: any number, to be solved for from `start`."""


def candidates(graph: Graph, node: Node) -> Iterator[Fault]:
    """Every shipped fault that can sit at a node and changes something there, whatever it leaves open.

    What it leaves open is `fault.free`; what to try for each, `domain` says. A fault that needs another checkpoint is
    among them: its `domain` is empty, since that has to be given.
    """
    for fault in shipped_faults().values():
        if sits_at(fault, graph, node) and _changes(graph, node, fault):
            yield fault


def domain(graph: Graph, node: Node, free: FreeValue) -> Domain:
    """What to try for a free value of a fault at a node; empty where it can only be given."""
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
    """The faults that leave one width open and give a node without weights values of a `width` that it has not."""
    for fault in candidates(graph, node):
        widths = [name for name, free in fault.free.items() if free.type == "width"]
        if len(fault.free) == len(widths) == 1:
            plant = planted(fault, {widths[0]: width})
            if width_of(applied(graph, node, (plant,))) == width:
                yield plant


def width_of(node: Node) -> int | None:
    """How many values of each token a node's first output has; None where that goes by its inputs, or by weights."""
    is_alone = not node.weights and node.op.integers == node.op.inputs
    return node.op.memory.widths({}, node.params, ())[0] if is_alone else None


def start(node: Node, free: FreeValue) -> float:
    """The number that a search for a free number begins with: the node's own where the fault names a parameter."""
    value: Any = None
    if free.parameter is not None:
        name, _, key = free.parameter.partition(".")
        value = node.params.get(name)
        value = value.get(key) if key and isinstance(value, dict) else value
    return float(value if isinstance(value, (int, float)) else 1.0 if free.start is None else free.start)


def rewritten(plan: BoundGraph, node: Node, fault: Fault, values: Values | None = None) -> BoundGraph:
    """The plan with a fault at one of its nodes, behind what is planted there already, in all its phases.

    `values` are its free values. The plan's settings there name the fault (`(node, "fault")`), and `plan.as_run(node)`
    is the node with other parameters, weights and edits: what `engine.computation.op_numerics` runs, and what
    `WeightStore.node` reads weights for. Weights are rewritten by name where that will do, else tensor by tensor as
    they come from the source, so that a plan with a fault streams as any other (`moeparity.plan.faults.apply`); what a
    segment's `Loaded` has no tensors of, it reads when it is asked (`Loaded.of`). An observer that tries many faults
    asks `loaded.beside()`, whose rewritten weights go with it.

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
            # Two values of one kind must not be the same: an expert with its own weights is none of another's.
            values[name] = options[-1 - number % len(options)]
        elif free.type == "checkpoint":
            values[name] = "another"
        else:
            return False
    return applied(graph, node, (planted(fault, values),)) is not node


def _orders(experts: int) -> Iterator[str]:
    """Rotations, then the reverse, then two neighbours exchanged: what ranks and loops over names do amiss."""
    numbers = list(range(experts))
    rotations = [numbers[shift:] + numbers[:shift] for shift in range(1, experts)]
    swaps = [[*numbers[:i], i + 1, i, *numbers[i + 2 :]] for i in range(experts - 1)]
    every = dict.fromkeys(" ".join(map(str, order)) for order in (*rotations, numbers[::-1], *swaps))
    yield from (order for order in every if order != " ".join(map(str, numbers)))
