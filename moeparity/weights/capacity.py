"""Whether all weights of a graph fit into memory at once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from moeparity.graph.graph import Graph
from moeparity.numerics.dtypes import torch_dtype

SHARE = 0.5
"""Of the free memory; the rest is for activations, logits and what else the machine does."""


def fits(graph: Graph, dtypes: Sequence[str], device: torch.device) -> bool:
    """Whether the weights in every one of `dtypes` take at most half of what is free; False where that is unknown."""
    free = free_bytes(device)
    return free is not None and weight_bytes(graph, dtypes) <= SHARE * free


def weight_bytes(graph: Graph, dtypes: Sequence[str]) -> int:
    """What a resident WeightStore holds at most: every node's weights in every dtype."""
    refs = [ref for node in graph.nodes for ref in node.weights.values()]
    elements = [(torch.Size(ref.shape).numel() * len(ref.names), ref.keep_fp32) for ref in refs]
    widths = [torch_dtype(dtype).itemsize for dtype in dtypes]
    return sum(count * (4 if fp32 else width) for count, fp32 in elements for width in widths)


def free_bytes(device: torch.device) -> int | None:
    """Memory that can be had without swapping: of the GPU, or of the host as Linux estimates it; else None."""
    if device.type == "cuda":
        free: int = torch.cuda.mem_get_info(device)[0]
        return free
    try:
        lines = Path("/proc/meminfo").read_text("utf-8").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)
