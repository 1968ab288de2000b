"""Grafts: values of a recorded run that a walker uses instead of what it computes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from moeparity.engine.values import Block


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Graft:
    """A recorded value of the grid's tokens.

    read: its rows [B * T, N], zeros for tokens that were not recorded. Called once for every block.
    is_recorded: which tokens were recorded, bool [B * T].
    where: the trace and the place in it, for messages.
    whole: whether all tokens but padding were recorded.
    cast: whether the value is handed on in the dtype that the walker computes, because it is an operand of a GEMM,
        whose operands need one dtype; otherwise it keeps the dtype that was recorded.
    """

    read: Callable[[], torch.Tensor]
    is_recorded: torch.Tensor
    where: str
    whole: bool = False
    cast: bool = True


def grafted(block: Block, graft: Graft) -> tuple[torch.Tensor, torch.Tensor]:
    """A block's tensor with the recorded values of its tokens: as it was recorded, and as it is handed on.

    It has the memory layout of the computed tensor; tokens that were not recorded keep their computed values. A table
    of another width than the computed one is taken as it was recorded; it was recorded for every token but padding.
    """
    rows = graft.read()[block.batch.index].to(block.tensor.device)
    is_known = graft.is_recorded[block.batch.index].to(block.tensor.device)
    by_token = block.tensor.movedim(block.axis, 1)
    wide = by_token.shape[2:].numel()
    if rows.shape[1] != wide:
        shown = rows.view(*by_token.shape[:2], -1).movedim(1, block.axis).contiguous()
        return shown, shown
    shown = _put(block, rows, is_known)
    if rows.dtype == block.tensor.dtype or not graft.cast:
        return shown, shown
    return shown, _put(block, rows.to(block.tensor.dtype), is_known)


def _put(block: Block, rows: torch.Tensor, is_known: torch.Tensor) -> torch.Tensor:
    tensor = block.tensor
    laid_out = all(step or size < 2 for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    value = torch.empty_strided(tensor.shape, tensor.stride() if laid_out else _contiguous(tensor), dtype=rows.dtype)
    value = value.to(tensor.device)
    value.copy_(tensor)
    by_token = value.movedim(block.axis, 1)
    recorded = rows.view(by_token.shape)
    real = is_known.view(by_token.shape[:2])
    by_token[real] = recorded[real]
    return value


def _contiguous(tensor: torch.Tensor) -> tuple[int, ...]:
    return tuple(torch.empty(tensor.shape, device="meta").stride())
