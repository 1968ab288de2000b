"""What a rule sets on the nodes of a graph: by op, by selector, or by the chains a fusion matches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from moeparity.errors import GraphError, SpecError, Where
from moeparity.ops.attribute import EDGE, Value
from moeparity.ops.placement import STAGE
from moeparity.ops.registry import OPS
from moeparity.plan.address import select
from moeparity.plan.attention_groups import computed_apart
from moeparity.plan.borders import closing
from moeparity.plan.engine_profile import check_value, edge_of
from moeparity.plan.graph import Graph, Node
from moeparity.plan.rule import Rule

Assignment = tuple[str, str, Value, tuple[str, ...]]
"""Node name, name of the choice there, value, and for a fusion the nodes of the chain (else empty)."""


def assignments(graph: Graph, rule: Rule) -> Iterator[Assignment]:
    """Everything one rule sets. Raises SpecError for a value that is not allowed, GraphError for an empty match."""
    if not rule.holds_of(graph.model_type, graph.sizes):
        return
    concerned = _concerned(graph, rule)
    if rule.placement is not None:
        yield from _of_placement(concerned, rule)
        return
    if rule.chain is not None:
        nodes, first = {node.name: node for node in graph.nodes}, {node.name for node in concerned}
        for chain in chains(graph, rule.chain):
            if chain[0] in first:
                yield from _on_chain([nodes[name] for name in chain], rule)
        return
    canonical: dict[tuple[str, str], Value] = {}
    names = {node.name for node in concerned}
    for node in (node for node in _matches(graph, rule) if node.name in names):
        for name, value in rule.values:
            edge, key = edge_of(name), (node.op.name, name)
            if key not in canonical:
                canonical[key] = check_value(node.op, name, value, rule.where)[1]
            canonical_value = canonical[key]
            if edge is None:
                yield node.name, name, canonical_value, ()
            else:
                for consumer in _consumers(graph, node, edge[1], rule.where):
                    yield node.name, f"{edge[0]}{EDGE}{consumer}", canonical_value, ()
    _refuse_edges_without_match(graph, rule)


def _concerned(graph: Graph, rule: Rule) -> Sequence[Node]:
    """The nodes that a placement rule is about: normally all; under data-parallel attention those that each group
    computes apart (`rule.apart`), or the others; for a pipeline those that close a stage.
    """
    if rule.pipeline is not None:
        try:
            last = rule.pipeline.last_layers(graph.whole.layers)
        except ValueError as error:
            raise SpecError(f"{rule.where}: placement: {error}.") from None
        return [_ending(node, rule) for node in closing(graph) if node.layer in last]
    if rule.groups.count == 1:
        return graph.nodes
    apart = computed_apart(graph, rule.groups.gathered)
    return [node for node in graph.nodes if (node.name in apart) == rule.apart]


def _ending(node: Node, rule: Rule) -> Node:
    """The node that closes a stage. Raises SpecError where its op describes no border."""
    if node.op.attribute(STAGE) is None:
        raise SpecError(
            f"{rule.where}: placement: a stage would end with {node.name}, op {node.op.name}, of which no border is "
            "described. Let `stages` end it with another layer."
        )
    return node


def _of_placement(nodes: Sequence[Node], rule: Rule) -> Iterator[Assignment]:
    """What a rule about ranks sets: its values, at every node that has the attribute, but for the ops in `without`."""
    for node in nodes:
        for name, value in rule.values:
            if node.op.attribute(name) is not None and node.op.name not in rule.without:
                yield node.name, name, check_value(node.op, name, value, rule.where)[1], ()


def chains(graph: Graph, ops: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The paths in the graph whose nodes have these ops, one after the other, by when their first node runs."""
    op_of = {node.name: node.op.name for node in graph.nodes}

    def extensions(path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        if len(path) == len(ops):
            yield path
            return
        for successor in graph.digraph.successors(path[-1]):
            if op_of[successor] == ops[len(path)]:
                yield from extensions((*path, successor))

    for node in graph.nodes:
        if node.op.name == ops[0]:
            yield from extensions((node.name,))


def _on_chain(chain: list[Node], rule: Rule) -> Iterator[Assignment]:
    """What a fusion sets on one chain it matches; keys are `op:attribute` and `op:site->op`."""
    by_op = {node.op.name: node for node in chain}
    for key, value in rule.values:
        op, _, name = key.partition(":")
        _, canonical = check_value(by_op[op].op, name, value, rule.where)
        edge = edge_of(name)
        place = name if edge is None else f"{edge[0]}{EDGE}{by_op[edge[1]].name}"
        yield by_op[op].name, place, canonical, tuple(node.name for node in chain)


def _matches(graph: Graph, rule: Rule) -> list[Node]:
    if rule.op is not None:
        return [node for node in graph.nodes if node.op.name == rule.op]
    assert rule.nodes is not None
    names = set(select(rule.nodes, [node.name for node in graph.nodes], graph.layers, rule.where))
    return [node for node in graph.nodes if node.name in names]


def _consumers(graph: Graph, node: Node, selector: str, where: Where) -> list[str]:
    """The consumers of a node that a selector names: nodes, or all of one op, of which a model may have none."""
    readers = list(graph.digraph.successors(node.name))
    if selector in OPS:
        names = {n.name for n in graph.nodes if n.op.name == selector and n.name in readers}
    else:
        names = set(select(selector, [n.name for n in graph.nodes], graph.layers, where))
    return [name for name in readers if name in names]


def _refuse_edges_without_match(graph: Graph, rule: Rule) -> None:
    """Refuse a `nodes` rule for a site on an edge where no such edge exists: it would be ignored silently."""
    for name, _ in rule.values:
        edge = edge_of(name)
        if rule.nodes is None or edge is None:
            continue
        nodes = _matches(graph, rule)
        if not any(_consumers(graph, n, edge[1], rule.where) for n in nodes):
            readers = sorted({c for n in nodes for c in graph.digraph.successors(n.name)})
            raise GraphError(
                f"{rule.where}: {rule.nodes}:{name} names no edge: nothing that {edge[1]!r} stands for reads "
                f"{nodes[0].name}, which is read by {', '.join(readers[:4]) or 'nothing'}."
            )
