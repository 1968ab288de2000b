"""Regions: nodes of one layer that are replaced by a user's function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from moeparity.errors import SpecError, Where, listed
from moeparity.plan.address import select
from moeparity.plan.graph import Graph, Node
from moeparity.plan.rule import Rule
from moeparity.plan.spec import variant_schema


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """Nodes in execution order, of which only the last is read outside the region, and the function run instead.

    `call` is `module:function`; `inputs` are the values that the nodes read from outside, in the order they are first
    read.
    """

    call: str
    nodes: tuple[str, ...]
    inputs: tuple[str, ...]
    rule: Rule

    @property
    def where(self) -> Where:
        """Where the recipe asks for it."""
        return self.rule.where


def regions(graph: Graph, impls: Sequence[variant_schema.Impl], where: Where) -> tuple[Region, ...]:
    """The regions of a variant's `impl:`, one per layer its selectors match.

    Raises GraphError for a selector that matches nothing, SpecError for regions that overlap or of which more than one
    node is read outside.
    """
    result: list[Region] = []
    region_of: dict[str, Region] = {}
    for impl in impls:
        at = Where(where.path, impl.line or where.line)
        selectors = [impl.nodes] if isinstance(impl.nodes, str) else impl.nodes
        names = {name for s in selectors for name in nodes_within(s, graph, at)}
        rule = Rule.of_impl(", ".join(selectors), impl.call, at)
        for segment in graph.segments:
            nodes = [node for node in segment.nodes if node.name in names]
            if nodes:
                region = _region(graph, nodes, rule, impl.call)
                _refuse_overlap(region, region_of)
                region_of |= dict.fromkeys(region.nodes, region)
                result.append(region)
    return tuple(result)


def nodes_within(selector: str, graph: Graph, where: Where) -> list[str]:
    """The nodes a selector matches, or that lie in what it names: `layers[0:2]`, `layers[*].moe`."""
    within = {node.name: _enclosing(node.name) for node in graph.nodes}
    candidates = dict.fromkeys(name for names in within.values() for name in names)
    matches = set(select(selector, candidates, graph.layers, where))
    return [name for name, names in within.items() if not matches.isdisjoint(names)]


def _enclosing(name: str) -> list[str]:
    """`layers[0].moe.gate` -> itself, `layers[0].moe` and `layers[0]`."""
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(len(parts), 0, -1)]


def _region(graph: Graph, nodes: Sequence[Node], rule: Rule, call: str) -> Region:
    names = {node.name for node in nodes}
    outlets = [n.name for n in nodes if not names.issuperset(graph.digraph.successors(n.name))]
    # The node that log-probabilities are taken from counts as read outside, though no node of the graph reads it.
    outlets += [n.name for n in nodes if graph.scores in n.values and n.name not in outlets]
    if outlets != [nodes[-1].name]:
        raise SpecError(
            f"{rule.where}: {call} replaces {listed([n.name for n in nodes])}, of which {listed(outlets)} "
            f"{'is' if len(outlets) == 1 else 'are'} read outside. Choose nodes of which only the last is read "
            "outside, since a function returns the values of one node."
        )
    values = {value for node in nodes for value in node.values}
    read = (value for n in nodes for port, value in zip(n.ports, n.inputs, strict=True) if port not in n.op.unhanded)
    inputs = dict.fromkeys(value for value in read if value not in values)
    return Region(call=call, nodes=tuple(n.name for n in nodes), inputs=tuple(inputs), rule=rule)


def _refuse_overlap(region: Region, region_of: dict[str, Region]) -> None:
    for node in region.nodes:
        if node in region_of:
            raise SpecError(
                f"{region.where}: {region.call} replaces {node}, which {region_of[node].call} replaces too. "
                "Narrow `nodes` so that they do not overlap."
            )
