"""The faults that a recipe states on a side: at which nodes they stand, checked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from moeparity import paths
from moeparity.errors import SpecError, Where, did_you_mean, display_path, listed
from moeparity.ops.attribute import Value
from moeparity.plan.faults.apply import applied, experts_of, ports_of, sibling, sits_at
from moeparity.plan.faults.fault import Fault, FaultyNode, Planted, planted, spelled
from moeparity.plan.faults.reader import find_fault
from moeparity.plan.graph import Graph, Node
from moeparity.plan.region import nodes_within
from moeparity.plan.rule import Rule
from moeparity.plan.schedule.cases import Range, write
from moeparity.plan.schedule.steps import PHASES
from moeparity.plan.spec import variant_schema

WHOLE_CHECKPOINT: Final = "weights-of-another-checkpoint"
"""The fault by which a node has the weights that another checkpoint has for it."""


def stated(graph: Graph, faults: Sequence[variant_schema.StatedFault], where: Where) -> tuple[FaultyNode, ...]:
    """The nodes at which a variant's `faults:` stand, in the order of the graph.

    Raises SpecError for a fault that is not known, changes nothing where it is said to stand, or stands at a node twice
    where once is enough, and for values that are missing or do not fit; GraphError for a selector that matches nothing.
    """
    plants: dict[str, list[Planted]] = {}
    lines: dict[str, Where] = {}
    for stated_fault in faults:
        at = Where(where.path, stated_fault.line or where.line)
        plant = _plant(find_fault(stated_fault.name, at), stated_fault, at)
        for node in _nodes(graph, plant, stated_fault, at):
            _refuse_idle(graph, node, plants.get(node.name, []), plant, at)
            plants.setdefault(node.name, []).append(plant)
            lines.setdefault(node.name, at)
    every = {node.name: tuple(plants[node.name]) for node in graph.nodes if node.name in plants}
    return tuple(
        FaultyNode(node=name, plants=of_node, rule=Rule.of_fault(spelled(of_node), lines[name]))
        for name, of_node in every.items()
    )


def earlier(
    graph: Graph, versions: Sequence[variant_schema.Version], standing: Sequence[FaultyNode], where: Where
) -> tuple[FaultyNode, ...]:
    """The nodes with other weights before each update, for the steps that ran on those weights alone: `versions` are
    what a recipe's `earlier:` holds, the latest first; `standing` are faults of all steps, which stay.

    Raises what `stated` raises.
    """
    always = {faulty.node: faulty.plants for faulty in standing}
    nodes: list[FaultyNode] = []
    for version, rule in zip(versions, lag_rules(len(versions), where), strict=True):
        for faulty in stated(graph, _as_faults(version), where):
            plants = (*always.get(faulty.node, ()), *faulty.plants)
            nodes.append(FaultyNode(node=faulty.node, plants=plants, rule=rule))
    return tuple(nodes)


def lag_rules(count: int, where: Where) -> list[Rule]:
    """The rules behind the weights before each of `count` updates, the latest first: each holds in the steps that ran
    on them.
    """
    of_lag = ({"lag": Range(lag, lag + 1)} for lag in range(1, count + 1))
    cases = (tuple(write(phase, ranges) for phase in PHASES) for ranges in of_lag)
    return [replace(Rule.of_fault(f"weights {lag} back", where), cases=of) for lag, of in enumerate(cases, start=1)]


def _as_faults(version: variant_schema.Version) -> Sequence[variant_schema.StatedFault]:
    if not isinstance(version, str):
        return version
    return [variant_schema.StatedFault(name=WHOLE_CHECKPOINT, values={"checkpoint": version})]


def _refuse_idle(graph: Graph, node: Node, before: Sequence[Planted], plant: Planted, where: Where) -> None:
    """Raise SpecError for a fault planted twice at a node where both together equal one of them alone.

    Factors of two different experts both count, so that is allowed; of two values of eps only the later one counts.
    """
    again = next((there for there in before if there.fault.name == plant.fault.name), None)
    if again is None:
        return
    others = [there for there in before if there is not again]
    with_either = (applied(graph, node, before).computation, applied(graph, node, (*others, plant)).computation)
    if applied(graph, node, (*before, plant)).computation in with_either:
        raise SpecError(
            f"{where}: fault {plant} at {node.name}: fault {again} stands there too, and both together are what one of "
            "them is. Narrow `nodes` or `layers`, or leave one out."
        )


def _plant(fault: Fault, stated_fault: variant_schema.StatedFault, where: Where) -> Planted:
    """The fault with its values: an order as text, a checkpoint's path resolved relative to the recipe's folder."""
    values: dict[str, Value] = {}
    for name, value in stated_fault.values.items():
        values[name] = " ".join(map(str, value)) if isinstance(value, list) else value
        if name in fault.free and fault.free[name].type == "checkpoint" and isinstance(value, str):
            folder = where.path.parent / value
            if not paths.present(folder):
                raise SpecError(
                    f"{where}: fault {fault.name}: {name}: there is no folder {display_path(folder)}. A relative path "
                    "starts at this file's folder."
                )
            values[name] = str(folder)
    try:
        return planted(fault, values)
    except ValueError as error:
        hint = did_you_mean(next((name for name in values if name not in fault.free), ""), fault.free)
        raise SpecError(f"{where}: fault {error}.{hint}") from None


def _nodes(graph: Graph, plant: Planted, stated_fault: variant_schema.StatedFault, where: Where) -> list[Node]:
    """The nodes to plant the fault at: those that are selected and that it changes."""
    selected = _selected(graph, stated_fault, where)
    there = [node for node in graph.nodes if node.name in selected and sits_at(plant.fault, graph, node)]
    if not there:
        sits = plant.fault.spec.sits
        called = f" called {listed(sits.node)}" if sits.node else ""
        raise SpecError(
            f"{where}: fault {plant.fault.name} can sit at nodes of op {listed(sits.op)}{called}, and none of those is "
            f"{'selected here' if stated_fault.nodes or stated_fault.layers else 'in this model'}."
        )
    for node in there:
        _refuse_unfit(graph, node, plant, where)
    changed = [node for node in there if applied(graph, node, (plant,)) is not node]
    if not changed:
        raise SpecError(
            f"{where}: fault {plant} changes nothing at {there[0].name}: what it would put there is what stands there, "
            "or the node has nothing of the kind. Leave it out."
        )
    return changed


def _selected(graph: Graph, stated_fault: variant_schema.StatedFault, where: Where) -> set[str]:
    if stated_fault.nodes is not None:
        selectors = [stated_fault.nodes] if isinstance(stated_fault.nodes, str) else stated_fault.nodes
        return {name for selector in selectors for name in nodes_within(selector, graph, where)}
    if stated_fault.layers is None:
        return {node.name for node in graph.nodes}
    beyond = next((layer for layer in stated_fault.layers if not 0 <= layer < graph.layers), None)
    if beyond is not None:
        raise SpecError(f"{where}: layers has {beyond}; the model has layers 0 to {graph.layers - 1}.")
    return {node.name for node in graph.nodes if node.layer in stated_fault.layers}


def _refuse_unfit(graph: Graph, node: Node, plant: Planted, where: Where) -> None:
    """Raise SpecError for an expert, a layer or an order that the node does not have."""
    count, values = experts_of(node), dict(plant.values)
    for name, free in plant.fault.free.items():
        reason = None if values[name] == free.default else _misfit(graph, node, free.type, values[name], count)
        if reason is not None:
            raise SpecError(f"{where}: fault {plant.fault.name} at {node.name}: {name} is {values[name]}; {reason}.")


def _misfit(graph: Graph, node: Node, kind: str, value: Value, count: int) -> str | None:
    if kind == "expert" and not 0 <= int(value) < count:
        return f"the experts are 0 to {count - 1}"
    if kind == "layer" and sibling(graph, node, int(value)) is None:
        return "that layer has no such node with weights of these shapes"
    if kind == "order" and not _is_order(str(value).split(), range(count)):
        return f"expected every expert once, 0 to {count - 1} in another order"
    if kind == "part" and not node.weights.keys() >= {*ports_of(str(value))}:
        return f"the weights there are {', '.join(node.weights)}; several are joined by `and`"
    return None


def _is_order(words: Sequence[str], experts: Iterable[int]) -> bool:
    return sorted(words) == sorted(map(str, experts))
