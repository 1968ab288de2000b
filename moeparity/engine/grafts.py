"""Grafts: values of a recorded run, put into a walker in place of what it computes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from moeparity.engine.values import Block
from moeparity.errors import TraceError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Graft:
    """A recorded value of the grid's tokens.

    read: its rows [B * T, N], those of tokens that were not recorded zero; asked for once for every block.
    is_recorded: which tokens were recorded, bool [B * T]. where: the trace and the place in it, for messages.
    whole: whether these are all tokens but padding.
    cast: whether it is handed on in the dtype that a walker computes, since it goes into a product of matrices, whose
        operands are of one dtype; else in the dtype that was recorded.
    """

    read: Callable[[], torch.Tensor]
    is_recorded: torch.Tensor
    where: str
    whole: bool = False
    cast: bool = True


def grafted(block: Block, graft: Graft, *, any_width: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """A block's tensor with what was recorded of its tokens, as it was and as it is handed on; laid out as what was
    computed, which stays where nothing was recorded. Of `any_width`, where that is every
    token but padding, with the number of values that was recorded.

    Raises TraceError where the trace has another number of values for each token, and it may not.
    """
    rows = graft.read()[block.batch.index].to(block.tensor.device)
    is_known = graft.is_recorded[block.batch.index].to(block.tensor.device)
    by_token = block.tensor.movedim(block.axis, 1)
    wide = by_token.shape[2:].numel()
    if rows.shape[1] != wide and any_width and graft.whole:
        shown = rows.view(*by_token.shape[:2], -1).movedim(1, block.axis).contiguous()
        return shown, shown
    if rows.shape[1] != wide:
        raise TraceError(
            f"{graft.where}: {rows.shape[1]:,} values for each token; this model's node has {wide:,}. Is it a trace of "
            "this checkpoint, and of one rank?"
        )
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
