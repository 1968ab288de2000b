"""The static scales of cached keys and values that a checkpoint has beside its weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from moeparity.errors import CheckpointError, Where
from moeparity.inputs.weights.checkpoint import Checkpoint
from moeparity.ops.kv_cache import CHECKPOINT
from moeparity.plan.graph import Graph, Node

_PLACES = ("", "attn.", "{}_proj.")
"""Where in a module of attention a scale may lie, `{}` being k or v."""
_OF_BOTH = "kv_scale"
_MATRIX = 2
_OF_OUTPUT = "{}_proj.output_scale"
"""The older name by which a scale of a projection's outputs is that of the cache."""


def cache_scales(node: Node, graph: Graph, checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
    """`k_scale` and `v_scale` of a cache's node, fp32 []: those beside the projections of its attention; one for both
    counts twice, so does the one that is there alone, and without any both are 1. Raises CheckpointError for a scale
    that is not one positive number.

    As vLLM has it (commit 0531c2226a, quantization/kv_cache.py, BaseKVCacheMethod.process_weights_after_loading; names
    of projections' outputs: its quantization/fp8.py, get_cache_scale_mapper).
    """
    module = _module(node, graph)
    each = {of: _scale(of, module, checkpoint) for of in ("k", "v")}
    present = [scale for scale in each.values() if scale is not None]
    either = max(present) if present else 1.0
    return {f"{of}_scale": torch.tensor(either if scale is None else scale) for of, scale in each.items()}


def has_scales(node: Node) -> bool:
    """Whether a node is a cache of keys and values, which may have scales."""
    return node.op.attribute("k_scale") is not None


def reads_scales(node: Node, choices: Mapping[str, Any]) -> bool:
    """Whether a node's choices make it a cache with the checkpoint's scales."""
    return has_scales(node) and choices.get("scale") == CHECKPOINT


def _module(node: Node, graph: Graph) -> str:
    """The name, in files, of the module whose cache a node is: the one that its layer's projections lie in."""
    block = node.name.rpartition(".")[0]
    names = (
        name
        for sibling in graph.whole.nodes
        if sibling.name.rpartition(".")[0] == block
        for ref in sibling.weights.values()
        if len(ref.shape) == _MATRIX
        for name in ref.names
    )
    return next(names, "").rpartition(".")[0].rpartition(".")[0]


def _scale(of: str, module: str, checkpoint: Checkpoint) -> float | None:
    places = [f"{place.format(of)}{of}_scale" for place in _PLACES]
    names = [f"{module}.{place}" for place in (*places, _OF_BOTH, _OF_OUTPUT.format(of))]
    name = next((name for name in names if name in checkpoint.beside), None)
    if name is None:
        return None
    entry, scale = checkpoint.stored[name], checkpoint.beside_tensor(name)
    where = f"{Where(entry.file)}: {name} is {entry.dtype} {list(entry.shape)}"
    if scale.numel() != 1:
        raise CheckpointError(f"{where}; expected [], one scale for all heads. Set the cache's `scale` to head.")
    number = float(scale)
    if not (math.isfinite(number) and number > 0):
        raise CheckpointError(
            f"{where} and {number:g}; expected a number above 0, by which keys or values are divided. Set the cache's "
            "scale to static, and give it."
        )
    return number
