"""The weights of a node that a fault rewrites: read part by part, possibly from other checkpoints, then changed.

A tensor gets the same address modulo 64 as the checkpoint's own, since that changes the bits of some kernels: a fault
is to change numbers, not addresses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import torch

from moeparity.errors import CheckpointError, Where
from moeparity.inputs.weights.checkpoint import Checkpoint
from moeparity.numerics.dtypes import torch_dtype
from moeparity.plan.edits import Part, Verb
from moeparity.plan.graph import Node, WeightRef

Read = Callable[[str, str], torch.Tensor]
"""(name, folder of the checkpoint; "" for the model's own) -> tensor."""

_PLACES = 64
"""In bytes: kernels may depend on an address modulo this."""


def weights_of(node: Node, dtype: str, device: torch.device, read: Read) -> dict[str, torch.Tensor]:
    """The weights of a rewritten node by port, in the layout of `WeightStore.node`."""
    stacks: dict[str, list[WeightRef]] = {}
    for port in node.op.weights:
        if port.name in node.weights:
            stacks.setdefault(port.stack or port.name, []).append(node.weights[port.name])
    return {name: _weight(refs, dtype, device, read) for name, refs in stacks.items()}


def refuse_others(nodes: Iterable[Node], open_other: Callable[[str], Checkpoint]) -> None:
    """Raise CheckpointError if another checkpoint has no tensor of the name and shape that a fault takes from it."""
    for node in nodes:
        for ref in node.weights.values():
            for part in (part for part in ref.parts if part.checkpoint):
                entry = open_other(part.checkpoint).require(part.name, ref.where)
                if entry.shape != ref.stored:
                    raise CheckpointError(
                        f"{Where(entry.file)}: {part.name} has shape {list(entry.shape)}; a fault at {node.name} puts "
                        f"it in place of one of {list(ref.stored)}. Give a checkpoint of the same model."
                    )


def _weight(refs: Sequence[WeightRef], dtype: str, device: torch.device, read: Read) -> torch.Tensor:
    first = refs[0]
    target = torch.float32 if first.keep_fp32 and not (first.each and first.stacked is None) else torch_dtype(dtype)
    if first.stacked is not None:
        own_weight = read(first.names[0], "")
        stack = _placed(torch.stack([_part(part, read) for part in first.pieces]), own_weight).to(device, target)
        return stack.transpose(1, 2) if stack.dim() == 3 else stack
    if first.each:
        by_port = [[_part(part, read) for part in ref.pieces] for ref in refs]
        return torch.stack([torch.cat(rows) for rows in zip(*by_port, strict=True)]).to(device, target)
    (part,) = first.pieces
    return _placed(_part(part, read), read(first.names[0], "")).to(device, target)


def _part(part: Part, read: Read) -> torch.Tensor:
    tensor = read(part.name, part.checkpoint)
    tensor = tensor if part.expert is None else tensor[part.expert]
    for verb, number in part.edits:
        tensor = _EDITS[verb](tensor, number)
    return tensor


def _pairs(tensor: torch.Tensor, _: float) -> torch.Tensor:
    return tensor.view(*tensor.shape[:-1], -1, 2).flip(-1).flatten(-2)


def _halves(tensor: torch.Tensor, _: float) -> torch.Tensor:
    return tensor.view(*tensor.shape[:-1], 2, -1).flip(-2).flatten(-2)


_EDITS: Mapping[Verb, Callable[[torch.Tensor, float], torch.Tensor]] = {
    "times": lambda tensor, number: tensor * number,
    "filled": torch.full_like,
    "transposed": lambda tensor, _: tensor.mT.contiguous().view(tensor.shape),
    "halves": _halves,
    "pairs": _pairs,
}


def _placed(values: torch.Tensor, own_weight: torch.Tensor) -> torch.Tensor:
    """The values, contiguous, at the same address modulo 64 as the checkpoint's own tensor."""
    width = values.element_size()
    room = torch.empty(values.numel() + _PLACES // width, dtype=values.dtype)
    start = (own_weight.data_ptr() - room.data_ptr()) % _PLACES // width
    return room[start : start + values.numel()].view(values.shape).copy_(values)


def other_checkpoint(folder: str) -> Checkpoint:
    """The checkpoint from which a fault takes weights. Raises CheckpointError."""
    return Checkpoint(Path(folder))
