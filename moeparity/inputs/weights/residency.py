"""Whether all weights of a graph can stay in memory between passes."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from moeparity.inputs.machine import available_bytes
from moeparity.ops.memory import weight_bytes
from moeparity.plan.graph import Graph

SHARE = 0.5
"""Of the available memory; the rest is for activations, logits and what else the machine does."""


def fits(graph: Graph, dtypes: Sequence[str], device: torch.device, limit: float | None = None) -> bool:
    """Whether the weights in every one of `dtypes` take at most half of what is available; False where unknown.

    `limit` are the bytes that may be taken at most (None: all that is available).
    """
    available = available_bytes(device)
    if available is None:
        return False
    return resident_bytes(graph, dtypes) <= SHARE * min(available, available if limit is None else limit)


def resident_bytes(graph: Graph, dtypes: Sequence[str]) -> int:
    """What a resident WeightStore holds at most: every node's weights in every dtype."""
    refs = [ref for node in graph.nodes for ref in node.weights.values()]
    return sum(
        weight_bytes(ref.shape, ref.count, "fp32" if ref.keep_fp32 else dtype) for ref in refs for dtype in dtypes
    )
