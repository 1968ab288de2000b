"""Reductions by the backend of the torch.distributed job that this process is in."""

from __future__ import annotations

import torch
import torch.distributed as dist

# torch 2.13 has a new name for it and deprecates the old one.
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def all_reduce(x: torch.Tensor, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    """The sum of every rank's x, as a new tensor; group None: over all ranks."""
    total = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=group)
    return total


def reduce_scatter(x: torch.Tensor, group: dist.ProcessGroup | None = None) -> list[torch.Tensor]:
    """The parts [k, ...] of the sum of every rank's x [n * k, ...], each as the rank to which it was scattered got it.

    The parts of other ranks are sent to all ranks afterwards.
    """
    ranks = dist.get_world_size(group)
    own_part = x.new_empty(x.shape[0] // ranks, *x.shape[1:])
    _reduce_scatter(own_part, x.contiguous(), group=group)
    parts = [torch.empty_like(own_part) for _ in range(ranks)]
    dist.all_gather(parts, own_part, group=group)
    return parts
