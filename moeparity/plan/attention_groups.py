"""Which nodes each group of ranks computes for its own sequences alone, under data-parallel attention."""

from __future__ import annotations

from moeparity.plan.graph import Graph, Node
from moeparity.plan.schedule.steps import Gathered


def computed_apart(graph: Graph, gathered: Gathered) -> frozenset[str]:
    """The nodes that each group runs on its own rows only; all other nodes get the rows of all groups together."""
    return frozenset(node.name for node in graph.nodes) - _gathered(graph, gathered)


def _gathered(graph: Graph, gathered: Gathered) -> frozenset[str]:
    nodes = graph.nodes
    if gathered == "mlp":
        attending = {_block(node) for node in nodes if node.op.tokens.by_sequence}
        first = next((place for place, node in enumerate(nodes) if node.layer is not None), 0)
        return frozenset(node.name for node in nodes[first:] if _block(node) not in attending)
    names: set[str] = set()
    by_name = {node.name: node for node in nodes}
    waiting = [node.name for node in nodes if any(port.each for port in node.op.weights)]
    while waiting:
        name = waiting.pop()
        if name not in names:
            names.add(name)
            # After the sum over ranks every group has only its own rows again.
            waiting += [] if by_name[name].op.role.reduces else list(graph.digraph.successors(name))
    return frozenset(names)


def _block(node: Node) -> str:
    """`layers[0].attention` of `layers[0].attention.attend`; empty outside of the layers."""
    return node.name.rpartition(".")[0]
