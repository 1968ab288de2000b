"""Where a run of ours first differs from transformers: what goes into and comes out of its modules is held to nodes.

A node with a weight belongs to the module that has the weight: what the module reads is the value that the node reads,
what it returns the node's own. Values between two modules (attention after its projections, say) are seen where the
next module reads them, so that a difference is laid at a node and at those before it that nothing shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from moeparity.inputs.model import Model
from moeparity.numerics.bits import int_view, same_bits
from moeparity.plan.address import file_key
from moeparity.plan.graph import Graph, Node
from tests.hf.reference import placed

ROTARY = "rotary"
"""The op of the angles: it has no weight, but a module."""

RENAMED = {"block_sparse_moe": "mlp"}
"""Parts of a weight's name in files, and in transformers 5."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The first value that differs, in the order of the graph, and the share of its elements that do.

    `node` with its op made it. `or_before` are the nodes whose values nothing shows and that reach it through such
    nodes only: the difference starts at one of these or at `node`. With `node` None all `compared` values are equal.
    """

    compared: int
    node: str | None = None
    op: str | None = None
    share: float = 0.0
    or_before: tuple[str, ...] = ()


def find(
    model: Model,
    ours: Mapping[str, Tensor],
    profile: str,
    dtype: torch.dtype,
    ids: Tensor,
    mask: Tensor | None,
) -> Found:
    """Run transformers once more and hold the values of its modules to `ours`, by file key, those of every node."""
    theirs = values(model, profile, dtype, ids, mask)
    compared: set[str] = set()
    for node in model.graph.nodes:
        for value in node.values:
            pair = _pair(ours.get(file_key(value)), theirs.get(value))
            if pair is None:
                continue
            compared.add(value)
            if not same_bits(*pair):
                different = int_view(pair[0]) != int_view(pair[1])
                return Found(
                    compared=len(compared),
                    node=node.name,
                    op=node.op.name,
                    share=different.double().mean().item(),
                    or_before=_unseen(model.graph, node, compared),
                )
    return Found(compared=len(compared))


def _pair(ours: Tensor | None, theirs: Tensor | None) -> tuple[Tensor, Tensor] | None:
    """Both as rows of elements; None where one is missing, or has other elements or another dtype."""
    if ours is None or theirs is None or ours.numel() != theirs.numel() or ours.dtype != theirs.dtype:
        return None
    return ours.flatten(), theirs.flatten()


def values(model: Model, profile: str, dtype: torch.dtype, ids: Tensor, mask: Tensor | None) -> dict[str, Tensor]:
    """What transformers' modules read and return, on the CPU, by the names of our values."""
    device = model.device
    theirs = placed(model.folder, profile, dtype, device.type)
    by_name: dict[str, Tensor] = {}

    def keep(node: Node, inputs: tuple[Any, ...], output: Any) -> None:
        read = [] if node.op.name == ROTARY else zip(node.inputs, inputs[:1], strict=False)
        for value, tensor in (*read, *_returned(model.graph, node, output, len(ids))):
            if isinstance(tensor, Tensor):
                # Copied, since the next op may work in place.
                by_name.setdefault(value, tensor.detach().to("cpu", copy=True))

    hooks = [
        module.register_forward_hook(lambda _, inputs, output, node=node: keep(node, inputs, output))
        for node, module in _modules(model.graph, theirs)
    ]
    try:
        with torch.no_grad():
            theirs(ids.to(device), attention_mask=None if mask is None else mask.to(device), use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    return by_name


def _returned(graph: Graph, node: Node, output: Any, sequences: int) -> list[tuple[str, Any]]:
    """The values that a node's module returns; of a router's module, ids and weights: its logits differ by model."""
    if isinstance(output, Tensor):
        return [(node.values[0], output)]
    if node.op.name == ROTARY:
        # Computed once where all sequences have the same positions.
        return [(value, x.expand(sequences, -1, -1)) for value, x in zip(node.values, output, strict=True)]
    routers = [router for router in graph.nodes if router.op.role.routes and node.values[0] in router.inputs]
    return [pair for router in routers for pair in zip(router.values, (output[2], output[1]), strict=True)]


def _modules(graph: Graph, theirs: nn.Module) -> list[tuple[Node, nn.Module]]:
    """Nodes of one weight matrix or vector (and its bias), and the modules that hold it; and that of the angles."""
    modules = dict(theirs.named_modules())
    pairs = []
    for node in graph.nodes:
        if node.op.name == ROTARY:
            pairs.append((node, modules["model.rotary_emb"]))
        weight = node.weights.get("weight")
        if weight is None or weight.each:
            continue
        name = weight.names[0].removesuffix(".weight")
        for old, new in RENAMED.items():
            name = name.replace(old, new)
        # A tied head reads the embedding's weight.
        name = "lm_head" if node.op.name == "lm_head" else name
        if name in modules:
            pairs.append((node, modules[name]))
    return pairs


def _unseen(graph: Graph, node: Node, compared: set[str]) -> tuple[str, ...]:
    """Nodes before this one of which nothing was compared, reached through such nodes only; in the graph's order."""
    shown = {n.name for n in graph.nodes if not compared.isdisjoint(n.values)}
    reached: set[str] = set()
    ahead = [node.name]
    while ahead:
        before = set(graph.digraph.predecessors(ahead.pop())) - shown - reached
        reached |= before
        ahead += before
    return tuple(n.name for n in graph.nodes if n.name in reached)
