"""What a trace shows of each node of a graph, for tests that hold it to kernels."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from moeparity.errors import Where
from moeparity.evidence.maps.forwards import forwards, module_calls
from moeparity.evidence.maps.module_map import ModuleMap, map_of
from moeparity.evidence.maps.values import shown_values
from moeparity.evidence.trace.reader import RankTrace
from moeparity.plan.graph import Graph


@dataclass(frozen=True, slots=True)
class NodeValues:
    """What a trace shows of one node in one forward: a tensor for each of its inputs and outputs, None where unknown.

    Laid out as kernels take and give them: [b, t, ...], values that are cut into heads as [b, t, heads, D] or, behind
    rope and in caches, [b, heads, t, D]; contiguous. The input `tokens` is there; `positions` and `mask` are unknown.
    """

    inputs: tuple[torch.Tensor | None, ...]
    outputs: tuple[torch.Tensor | None, ...]

    @property
    def whole(self) -> bool:
        """Whether every input and output is known."""
        return all(value is not None for value in (*self.inputs, *self.outputs))


def values_at(
    trace: RankTrace, graph: Graph, module_map: ModuleMap | None = None, *, forward: int = 0
) -> dict[str, NodeValues]:
    """By address, what the trace shows of every node in one of its forwards; nodes of which it shows nothing are left
    out. The map is that of the trace's program, by default the shipped one that its modules fit.

    Only tensors that were kept whole are seen. A value whose shape is of other tokens than the ids, or whose module was
    called several times in the forward, is unknown. Raises TraceError and SpecError.
    """
    module_map = module_map or map_of(module_calls(trace), Where(trace.folder))
    by_value = shown_values(trace, graph, module_map, forwards(trace, module_map)[forward]).tensors
    at = {
        node.name: NodeValues(tuple(map(by_value.get, node.inputs)), tuple(map(by_value.get, node.values)))
        for node in graph.nodes
    }
    return {
        name: node_values for name, node_values in at.items() if any(value is not None for value in node_values.outputs)
    }
