"""Tensors as a program has them, made into rows of tokens, and rows into the layout that a node's kernel gives."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from moeparity.plan.graph import Graph, Node


def token_rows(
    tensor: torch.Tensor, size: tuple[int, int], columns: tuple[int, int] | None = None, width: int | None = None
) -> torch.Tensor | None:
    """A value as [b, k, N], of `size` b sequences with t tokens each, N the `width`; None where its shape is of no such
    tokens.

    The axes of the tokens come first, as [b, t, ...] or as [b * t, ...]. One row for all sequences, [1, t, ...], is of
    each of them. Of a head that sees each sequence's last k tokens alone, [b, k, V], k is less than t.
    """
    sequences, length = size
    if columns is not None:
        if not tensor.dim() or columns[1] > tensor.shape[-1]:
            return None
        tensor = tensor[..., columns[0] : columns[1]]
    for axes in range(tensor.dim()):
        if math.prod(tensor.shape[:axes]) == sequences * length and _fits(tensor, axes, width):
            return tensor.reshape(sequences, length, -1)
    if tensor.dim() > 2 and tensor.shape[:2] == (1, length) and _fits(tensor, 2, width):
        return tensor.expand(sequences, *tensor.shape[1:]).flatten(2)
    if tensor.dim() == 3 and tensor.shape[0] == sequences and 0 < tensor.shape[1] < length:
        return tensor
    return None


def _fits(tensor: torch.Tensor, axes: int, width: int | None) -> bool:
    """Whether what lies behind so many axes may be a token's own: several axes may be those of other tokens, as of what
    a step of decoding makes of all keys.
    """
    return axes + 1 == tensor.dim() or width in (None, math.prod(tensor.shape[axes:]))


def heads(graph: Graph) -> Mapping[str, int]:
    """Into how many heads each value of a graph is cut; 1 where it is not."""
    cut: dict[str, int] = {}
    for node in graph.nodes:
        for port, value in enumerate(node.values):
            cut[value] = _heads(node, port, cut)
    return cut


def _heads(node: Node, port: int, cut: Mapping[str, int]) -> int:
    if node.op.mixes_tokens:
        return 1
    if node.params.get("heads"):
        return int(node.params["heads"])
    if node.op.joins_heads:
        return 1
    return cut.get(node.inputs[port if node.op.keeps_heads else 0], 1)


def laid_out(rows: torch.Tensor, node: Node, cut: int) -> torch.Tensor:
    """Rows [b, t, N] as the node's kernel gives them: [b, t, heads, N / heads], or [b, heads, t, N / heads]."""
    if cut > 1:
        rows = rows.reshape(*rows.shape[:2], cut, -1)
    elif node.op.token_axis > 1:
        rows = rows.unsqueeze(2)
    return rows if node.op.token_axis == 1 else rows.movedim(1, node.op.token_axis)
