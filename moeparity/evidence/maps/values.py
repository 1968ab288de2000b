"""What a trace shows of the nodes of a graph, forward by forward."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from moeparity.evidence.alignment.rows import Lying, lying
from moeparity.evidence.maps.forwards import Forward
from moeparity.evidence.maps.module_map import ModuleMap, ValuePlace
from moeparity.evidence.trace.reader import RankTrace
from moeparity.evidence.trace.records import Value
from moeparity.plan.faults.plant import width_of
from moeparity.plan.graph import Graph, Node
from moeparity.plan.token_shapes import TokenShape, token_shapes


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownValues:
    """A forward's values by name.

    tensors: laid out as kernels give them; `tokens` is one of them. other_shapes: in words, values of which a token has
    another shape than the checkpoint says; such a value is among `tensors` only if what reads it takes any number.
    """

    tensors: Mapping[str, torch.Tensor]
    other_shapes: Mapping[str, str]


def shown_values(trace: RankTrace, graph: Graph, module_map: ModuleMap, way: Forward) -> ShownValues:
    """What a trace shows of a graph's values in a forward."""
    shapes = token_shapes(graph)
    tensors: dict[str, torch.Tensor] = {"tokens": way.ids}
    other_shapes: dict[str, str] = {}
    for value, places in module_map.on(graph).items():
        rows = shown_rows(trace, way, places)
        if rows is None:
            continue
        node, words = graph.makers[value], shape_shown(trace, way, places, shapes[value])
        if words:
            other_shapes[value] = words
        if not words or takes_any_width(node):
            tensors[value] = laid_out(rows, node, shapes[value]).contiguous()
    return ShownValues(tensors=tensors, other_shapes=other_shapes)


def takes_any_width(node: Node) -> bool:
    """Whether what reads a node's values takes any number of them for each token. Slots of experts are of this kind,
    and tables that are made of positions alone.
    """
    return node.op.role.routes or width_of(node) is not None


def shown_rows(trace: RankTrace, way: Forward, places: Sequence[ValuePlace]) -> torch.Tensor | None:
    """A value in a forward as rows [b, k, N], at the first place that the trace has; whole numbers in int64."""
    for value, place, lies in _kept_places(trace, way, places):
        tensor = None if lies is None else trace.tensor(value)
        if lies is None or tensor is None:
            return None
        rows = lies.rows(tensor)[..., slice(*place.columns or (None,))].repeat(1, 1, place.repeated)
        return rows if rows.is_floating_point() else rows.long()
    return None


def shape_shown(trace: RankTrace, way: Forward, places: Sequence[ValuePlace], shape: TokenShape) -> str:
    """In words, the shape that a token has in place of a value's `shape`, at the first place that the trace has. Empty
    if it has that shape, or if nothing is known of a token.
    """
    for _, place, lies in _kept_places(trace, way, places):
        return "" if lies is None else other_shape(lies.axes, place, shape)
    return ""


def tokens_shown(trace: RankTrace, way: Forward, places: Sequence[ValuePlace]) -> torch.Tensor:
    """Which tokens of a forward it has the value of, as places in its flattened ids, int64 [b, k]: the last k of each
    sequence, or the last one of each request; k is 0 where it has none.
    """
    lies = next((lies for _, _, lies in _kept_places(trace, way, places)), None)
    return torch.zeros(len(way.ids), 0, dtype=torch.int64) if lies is None else lies.places


def _kept_places(
    trace: RankTrace, way: Forward, places: Sequence[ValuePlace]
) -> Iterator[tuple[Value, ValuePlace, Lying | None]]:
    """What was kept whole of a value, with how it lies on the forward's tokens; None where it is of no such."""
    for place in places:
        value = way.value(place, trace.contents.values)
        if value is not None and trace.has_tensor(value):
            width = place.width if place.beside is None else place.beside
            yield value, place, lying(value.shape, way.tokens, width, of_requests=place.of_requests)


def other_shape(axes: Sequence[int], place: ValuePlace, shape: TokenShape) -> str:
    """What a program has of a token in place of a value's `shape`, in words; empty where it has that."""
    if place.beside is not None:
        if math.prod(axes) == place.beside:
            return ""
        return f"{math.prod(axes):,} values for each token where those of the checkpoint are {place.beside:,} together"
    axes = (*axes[:-1], axes[-1] * place.repeated)
    return "" if shape.is_of(axes) else shape.beside(axes)


def laid_out(rows: torch.Tensor, node: Node, shape: TokenShape) -> torch.Tensor:
    """Rows [b, t, N] as the node's kernel gives them: [b, t, heads, N / heads], or [b, heads, t, N / heads]."""
    if shape.heads is not None or node.op.tokens.axis > 1:
        rows = rows.reshape(*rows.shape[:2], shape.heads or 1, -1)
    return rows.movedim(1, node.op.tokens.axis)
