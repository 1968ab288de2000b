"""What a trace shows of the nodes of a graph, forward by forward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from moeparity.evidence.maps.forwards import Forward
from moeparity.evidence.maps.module_map import ModuleMap, Place
from moeparity.evidence.maps.rows import Lying, laid_out, lying, other_shape, token_rows
from moeparity.evidence.trace.reader import RankTrace
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
    return node.op.routes or width_of(node) is not None


def shown_rows(trace: RankTrace, way: Forward, places: Sequence[Place]) -> torch.Tensor | None:
    """A value in a forward as rows [b, k, N], at the first place that the trace has; whole numbers in int64."""
    for place in places:
        value = way.value(place, trace.contents.values)
        tensor = None if value is None else trace.tensor(value)
        if tensor is not None:
            lies = _lying(way, tensor.shape, place)
            rows = None if lies is None else token_rows(tensor, lies, len(way.ids), place)
            return rows if rows is None or rows.is_floating_point() else rows.long()
    return None


def shape_shown(trace: RankTrace, way: Forward, places: Sequence[Place], shape: TokenShape) -> str:
    """In words, the shape that a token has in place of a value's `shape`, at the first place that the trace has. Empty
    if it has that shape, or if nothing is known of a token.
    """
    for place in places:
        value = way.value(place, trace.contents.values)
        if value is not None and trace.has_tensor(value):
            lies = _lying(way, value.shape, place)
            return "" if lies is None else other_shape(lies.axes, place, shape)
    return ""


def tokens_shown(trace: RankTrace, way: Forward, places: Sequence[Place]) -> torch.Tensor:
    """Which tokens of a forward it has the value of, as places in its flattened ids, int64 [b, k]: the last k of each
    sequence, or the last one of each request; k is 0 where it has none.
    """
    rows = torch.arange(way.ids.numel()).view(way.ids.shape)
    for place in places:
        value = way.value(place, trace.contents.values)
        if value is not None and trace.has_tensor(value):
            lies = _lying(way, value.shape, place)
            if lies is None:
                break
            return torch.tensor([way.ends]) if lies.of_requests else rows[:, rows.shape[1] - lies.tokens :]
    return rows[:, :0]


def _lying(way: Forward, shape: Sequence[int], place: Place) -> Lying | None:
    return lying(shape, (len(way.ids), way.ids.shape[1]), place, len(way.spans))
