"""What weights that an engine joins into one tensor have together: the largest number, and the largest scale."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from moeparity.ops.scale_choices import JOINED, JOINED_NODES
from moeparity.plan.edits import Part
from moeparity.plan.graph import Graph, Node

Read = Callable[[Part], torch.Tensor | None]
_MATRIX = 2


def reads_joined(choices: Mapping[str, Any]) -> bool:
    """Whether a node's choices ask for what others have that are joined with it."""
    return choices.get("weight_scales") == JOINED


def joined(node: Node, graph: Graph, read: Read, scales: Read) -> dict[str, torch.Tensor]:
    """The largest number, and the largest scale of codes (NaN where some weight has no codes), of each matrix of a node
    and those that are joined with it, fp32 [2] by port and `_joined`; {} where none is. read: a part's numbers; scales:
    those of its codes.
    """
    kin = [node, *(each for each in graph.whole.nodes if each.name != node.name and _are_joined(each, node))]
    ports = [port for port, ref in node.weights.items() if len(ref.shape) == _MATRIX] if len(kin) > 1 else []
    largest: dict[str, torch.Tensor] = {}
    for port in ports:
        parts = [part for each in kin for part in each.weights[port].pieces]
        largest[f"{port}_joined"] = torch.stack([_largest(of, parts) for of in (read, scales)])
    return largest


def _largest(read: Read, parts: Iterable[Part]) -> torch.Tensor:
    """The largest magnitude of what is read of some parts, fp32 []; NaN where one has nothing."""
    each = (read(part) for part in parts)
    return torch.stack([torch.tensor(torch.nan) if x is None else x.float().abs().max() for x in each]).max()


def _are_joined(first: Node, second: Node) -> bool:
    pair = (first, second)
    is_one_block = len({(node.name.rpartition(".")[0], node.op.name, node.inputs) for node in pair}) == 1
    last_names = {node.name.rpartition(".")[2] for node in pair}
    return is_one_block and any(last_names <= names for names in JOINED_NODES)
