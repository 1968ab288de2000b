"""What a fault changes in the tensors of a node: its inputs, its effect, its result."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from moeparity.plan.edits import Edit
from moeparity.plan.graph import Node

Ports = tuple[torch.Tensor, ...]


def edits_see_rows(node: Node) -> bool:
    """Whether a fault makes a token's result depend on which other tokens are computed with it."""
    return any(edit.verb in {"capacity", "shifted"} for edit in node.edits)


def resets_states(node: Node) -> bool:
    """Whether a sequence that begins at a node does so without the state that another one left."""
    return not any(edit.verb == "unreset" for edit in node.edits)


def edited(node: Node, kernel: Callable[..., Ports], tensors: Sequence[torch.Tensor | None]) -> Ports:
    """The values of a node with its edits; `kernel` computes its op."""
    reads = list(tensors)
    for edit in node.edits:
        if edit.subject == "input":
            place = node.ports.index(edit.port)
            source = node.ports.index(edit.other_port) if edit.verb == "of" else place
            reads[place] = _input(edit, tensors[source])
    values = kernel(*reads)
    for edit in node.edits:
        if edit.subject == "effect":
            values = _effect(node, edit, kernel, reads, values)
        elif edit.subject == "result":
            values = _result(node, edit, values)
    return values


def _input(edit: Edit, tensor: torch.Tensor | None) -> torch.Tensor | None:
    if tensor is None or edit.verb == "of":
        return tensor
    if edit.verb == "plus":
        return tensor + edit.number
    if (tensor.dim() == 2) is (edit.verb == "opened"):
        # No pack, or the mask [B, T, T] of one, in which no padding stands.
        return tensor
    return _shifted(tensor, int(edit.number)) if edit.verb == "shifted" else torch.full_like(tensor, edit.number)


def _shifted(mask: torch.Tensor, by: int) -> torch.Tensor:
    """A mask [B, T] moved towards the end by this many tokens; the columns that become free repeat the mask's end."""
    length = mask.shape[1]
    return mask[:, (torch.arange(length, device=mask.device) - by).clamp(0, length - 1)]


def _effect(
    node: Node, edit: Edit, kernel: Callable[..., Ports], reads: Sequence[torch.Tensor | None], values: Ports
) -> Ports:
    place = node.ports.index(edit.port)
    read = reads[place]
    assert read is not None, "what an effect is said of is always read"
    apart = values[0].numel() != read.numel()
    if edit.verb == "left_out":
        stands = _by_first_rank(read, values[0]) if apart else read.reshape(values[0].shape)
        return (stands.to(values[0].dtype),)
    again = list(reads)
    again[place] = values[0] if apart else values[0].reshape(read.shape)
    return kernel(*again)


def _by_first_rank(whole: torch.Tensor, partials: torch.Tensor) -> torch.Tensor:
    """A whole value [B, T, ...] as partial sums like those of [B, ranks, T, ...]: the first rank holds all of it."""
    stands = torch.zeros_like(partials, dtype=whole.dtype)
    stands[:, 0] = whole
    return stands


def _result(node: Node, edit: Edit, values: Ports) -> Ports:
    if edit.verb == "divided":
        return _divided(values, edit.number)
    if edit.verb == "capacity":
        return _capped(values, int(edit.number))
    return _fewer(values, int(edit.number), renormalize=bool(node.params["renormalize"]))


def _divided(values: Ports, by: float) -> Ports:
    """Divided in fp32 where the values are narrower, then rounded to their dtype."""
    (logits,) = values
    return ((logits / by).to(logits.dtype),)


def _capped(values: Ports, capacity: int) -> Ports:
    """ids and weights [B, T, K], with weight 0 for a token if `capacity` tokens before it went to the same expert.
    Tokens are counted in the order of the batch, the slots of a token in their order.
    """
    ids, weights = values
    flat = ids.flatten()
    chosen = torch.nn.functional.one_hot(flat)
    before = (chosen.cumsum(0) - chosen).gather(1, flat.unsqueeze(1)).view(ids.shape)
    return ids, torch.where(before < capacity, weights, torch.zeros_like(weights))


def _fewer(values: Ports, count: int, *, renormalize: bool) -> Ports:
    """ids and weights [B, T, K], with weight 0 for all but the `count` largest of a token. If the router renormalises,
    these are scaled in fp32 to the sum that all had, then rounded to their dtype.
    """
    ids, weights = values
    best = weights.topk(min(count, weights.shape[-1]), -1).indices
    remaining = torch.zeros_like(weights).scatter(-1, best, weights.gather(-1, best))
    if renormalize:
        all_sum, sum_now = (of.float().sum(-1, keepdim=True) for of in (weights, remaining))
        remaining = (remaining * (all_sum / sum_now)).to(weights.dtype)
    return ids, remaining
