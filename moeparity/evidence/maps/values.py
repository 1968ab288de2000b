"""What a trace shows of the nodes of a graph, forward by forward."""

from __future__ import annotations

import torch

from moeparity.evidence.maps.forwards import Forward
from moeparity.evidence.maps.module_map import ModuleMap, Place
from moeparity.evidence.maps.rows import heads, laid_out, token_rows
from moeparity.evidence.trace.reader import RankTrace
from moeparity.plan.graph import Graph


def values_by_name(trace: RankTrace, graph: Graph, module_map: ModuleMap, way: Forward) -> dict[str, torch.Tensor]:
    """What a trace shows of a graph's values in a forward, laid out as kernels give them, `tokens` among them."""
    cut, makers = heads(graph), {value: node for node in graph.nodes for value in node.values}
    by_value: dict[str, torch.Tensor] = {"tokens": way.ids}
    for value, places in module_map.on(graph).items():
        rows = shown_rows(trace, way, places)
        if rows is not None:
            by_value[value] = laid_out(rows, makers[value], cut[value]).contiguous()
    return by_value


def shown_rows(trace: RankTrace, way: Forward, places: tuple[Place, ...]) -> torch.Tensor | None:
    """A value in a forward as rows [b, k, N], at the first place that the trace has; whole numbers in int64."""
    for place in places:
        value = way.value(place, trace.contents.values)
        tensor = None if value is None else trace.tensor(value)
        if tensor is not None:
            sequences, length = way.ids.shape
            rows = token_rows(tensor, (sequences, length), place.columns, place.width)
            if rows is None:
                return None
            rows = rows.repeat(1, 1, place.repeated) if place.repeated > 1 else rows
            return rows if rows.is_floating_point() else rows.long()
    return None
