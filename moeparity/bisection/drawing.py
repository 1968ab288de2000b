"""The graph of a plan as a drawing: each kind of layer once, with the nodes on which both sides differ."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from moeparity.bisection.diagram import Arrow, Box, BoxKind, Drawing, Group
from moeparity.bisection.outline import Outline
from moeparity.plan.address import ranges, role
from moeparity.plan.choices import ABSENT, choices
from moeparity.plan.graph import SOURCES, Graph, Node, Segment


def drawing(outline: Outline) -> Drawing:
    """The expanded graph, with equal layers drawn once under a title like `layers[0:24]`.

    Layers are equal if they hold the same nodes with the same parameters, weights and choices on every side. An edge is
    labelled with a name only if it carries one part of its source's result, such as `ids`.
    """
    kinds = list(_kinds(outline))
    keys = {node.name: _key(f"{kind.key}.{_short(node)}") for kind in kinds for node in kind.members}
    outer_segments = [segment for segment in outline.graph.segments if segment.name in {"before", "after"}]
    keys |= {node.name: _key(f"top.{node.name}") for segment in outer_segments for node in segment.nodes}
    sources = [source for source in SOURCES if any(source in node.inputs for node in outline.graph.nodes)]
    keys |= {source: _key(f"source.{source}") for source in sources}
    boxes = [Box(key=keys[source], name=source, op="") for source in sources]
    boxes += [_box(node, keys, outline) for segment in outer_segments for node in segment.nodes]
    return Drawing(
        title=outline.title,
        boxes=tuple(boxes),
        groups=tuple(_group(kind, keys, outline) for kind in kinds),
        arrows=tuple(_arrows(outline.graph, keys, _inputs_read(outline))),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """Layers that are drawn as one: `example` stands for all of them."""

    key: str
    indices: list[int]
    example: Segment
    members: list[Node]


def _kinds(outline: Outline) -> Iterator[_Kind]:
    kinds: dict[tuple[object, ...], list[Segment]] = {}
    for segment in outline.graph.segments:
        if segment.name.startswith("layers["):
            kinds.setdefault(tuple(_signature(node, outline) for node in segment.nodes), []).append(segment)
    for number, segments in enumerate(kinds.values()):
        indices = [node.layer for segment in segments for node in segment.nodes[:1] if node.layer is not None]
        members = [node for segment in segments for node in segment.nodes]
        yield _Kind(key=f"kind{number}", indices=indices, example=segments[0], members=members)


def _signature(node: Node, outline: Outline) -> tuple[object, ...]:
    settings = tuple((choice.name, choice.values) for choice in choices(node, outline.plans))
    return role(node.name), node.op.name, repr(sorted(node.params.items())), tuple(node.weights), settings


def _group(kind: _Kind, keys: dict[str, str], outline: Outline) -> Group:
    blocks: dict[str, list[Box]] = {}
    for node in kind.example.nodes:
        blocks.setdefault(_short(node).rpartition(".")[0], []).append(_box(node, keys, outline))
    inner = [Group(key=_key(f"{kind.key}.{name}"), title=name, boxes=tuple(b)) for name, b in blocks.items()]
    return Group(key=kind.key, title=f"layers[{ranges(kind.indices)}]", groups=tuple(inner))


def _box(node: Node, keys: dict[str, str], outline: Outline) -> Box:
    differences = [
        f"{choice.name}: {' → '.join('unused' if value == ABSENT else value for value in choice.values)}"
        for choice in choices(node, outline.plans)
        if len(set(choice.values)) > 1
    ]
    name = node.name.rpartition(".")[2]
    return Box(key=keys[node.name], name=name, op=node.op.name, differences=tuple(differences))


def _inputs_read(outline: Outline) -> set[tuple[str, str]]:
    """(node, input) for each input that some side reads; a user's function reads the inputs of all its nodes."""
    pairs = set()
    for plan in outline.plans:
        regions = plan.replaced()
        for node in outline.graph.nodes:
            inputs = node.inputs if node.name in regions else plan.read_inputs(node)
            pairs |= {(node.name, value) for value in inputs if value is not None}
    return pairs


def _arrows(graph: Graph, keys: dict[str, str], inputs_read: set[tuple[str, str]]) -> Iterator[Arrow]:
    """The edges between the boxes drawn, each once."""
    places = {key: place for place, key in enumerate(dict.fromkeys(keys[node.name] for node in graph.nodes))}
    arrows: dict[Arrow, None] = {}
    for node in graph.nodes:
        for value in node.inputs:
            source = graph.makers.get(value)
            part = "" if source is None else value.removeprefix(source.name).removeprefix(".")
            start, end = keys[value if source is None else source.name], keys[node.name]
            # Only an edge from one layer to the next can lead to a box that stands earlier.
            backward = places.get(start, -1) >= places[end]
            kind: BoxKind = "unread" if (node.name, value) not in inputs_read else "repeat" if backward else "read"
            arrows.setdefault(Arrow(source=start, target=end, value=part, kind=kind))
    yield from arrows


def _short(node: Node) -> str:
    """`moe.router` for `layers[3].moe.router`."""
    return role(node.name).removeprefix("layers[*].")


def _key(name: str) -> str:
    """`moe.router` -> `moeRouter`: names hold no capitals, so different names have different keys."""
    return re.sub(r"\.(.)", lambda match: match[1].upper(), name)
