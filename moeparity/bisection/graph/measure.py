"""The graph of both bound plans, with layers that are alike taken together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

from moeparity.bisection.context import Context, Measure
from moeparity.bisection.graph.data import GraphNode, GraphSegment, NodeChoice, OpGraph, Read, SideChoice
from moeparity.bisection.study import Study
from moeparity.plan.address import ranges, role
from moeparity.plan.choices import choices
from moeparity.plan.graph import SOURCES, Node, Segment
from moeparity.plan.toggles import Toggle


def measure(of: Context) -> OpGraph:
    """The graph as it ran."""
    return OpGraph(segments=tuple(_segments(of.study)))


def _segments(study: Study) -> Iterator[GraphSegment]:
    """Segments in execution order; layers that are alike form one, at the place of the first of them."""
    alike: dict[tuple[GraphNode, ...], list[Segment]] = {}
    for segment in study.model.graph.segments:
        if segment.nodes:
            alike.setdefault(tuple(_node(node, study) for node in segment.nodes), []).append(segment)
    for nodes, segments in alike.items():
        layers = [node.layer for segment in segments for node in segment.nodes[:1] if node.layer is not None]
        # The first layer reads the embedding where the others read the layer before: both are among the reads.
        reads = [
            tuple(dict.fromkeys(read for node in same for read in _reads(node, study)))
            for same in zip(*(segment.nodes for segment in segments), strict=True)
        ]
        yield GraphSegment(
            title=f"layers[{ranges(layers)}]" if layers else segments[0].name,
            layers=tuple(layers),
            nodes=tuple(replace(node, reads=of_node) for node, of_node in zip(nodes, reads, strict=True)),
        )


def _node(node: Node, study: Study) -> GraphNode:
    """The node with its choices and toggles, `reads` still empty."""
    bound = (study.reference.plan, study.candidate.plan)
    return GraphNode(
        role=role(node.name),
        op=node.op.name,
        reads=(),
        choices=tuple(_of_both(choice.name, choice.values, choice.by_side) for choice in choices(node, bound)),
        toggles=tuple(_toggles_at(node, study.toggles)),
    )


@lru_cache(maxsize=4096)
def _of_both(name: str, values: tuple[str, ...], by_side: tuple[tuple[str, str], ...]) -> NodeChoice:
    """A choice at a node; cached, since many nodes have the same."""
    reference, candidate = (
        SideChoice(value=value, evidence=evidence, origin=origin)
        for value, (origin, evidence) in zip(values, by_side, strict=True)
    )
    return NodeChoice(name=name, reference=reference, candidate=candidate)


def _reads(node: Node, study: Study) -> Iterator[Read]:
    """Each value that the node reads from another node; values from outside the graph are left out."""
    read = set()
    for side in study.sides.values():
        for in_phase in side.plan.distinct:
            inputs = node.inputs if node.name in in_phase.replaced() else in_phase.read_inputs(node)
            read |= {value for value in inputs if value is not None}
    for value in dict.fromkeys(node.inputs):
        if value in SOURCES:
            continue
        source = study.model.graph.makers[value]
        yield Read(
            source=role(source.name),
            part=value.removeprefix(source.name).removeprefix("."),
            next_layer=source.layer != node.layer and source.layer is not None,
            unread=value not in read,
        )


def _toggles_at(node: Node, toggles: Sequence[Toggle]) -> Iterator[str]:
    for toggle in toggles:
        if toggle.parent is None and node.name in toggle.nodes:
            yield toggle.name


MEASURE = Measure(gives=OpGraph, measure=measure)
