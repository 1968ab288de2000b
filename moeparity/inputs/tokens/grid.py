"""The grid of a token set, for which schedules are made."""

from __future__ import annotations

from torch import Tensor

from moeparity.inputs.tokens.tokenset import TokenSet
from moeparity.plan.schedule.token_grid import TokenGrid


def token_grid(tokens: TokenSet, *, with_ids: bool) -> TokenGrid:
    """Where each sequence's tokens lie, and how many of them are prompt: those before the first scored one, or all.

    with_ids: keep the ids, which a prefix cache compares.
    """
    firsts = tokens.attention_mask.int().argmax(1)
    prompts = (tokens.loss_mask.int().argmax(1) - firsts).where(tokens.loss_mask.any(1), tokens.attention_mask.sum(1))
    ids = tuple(map(tuple, tokens.told_apart.tolist())) if with_ids else None
    return grid_of(tokens.attention_mask, prompts, ids)


def grid_of(mask: Tensor, prompts: Tensor, ids: tuple[tuple[int, ...], ...] | None = None) -> TokenGrid:
    """The grid of an attention mask [B, T]; prompts: int64 [B], how many tokens of each sequence are prompt."""
    rows = zip(mask.int().argmax(1).tolist(), mask.sum(1).tolist(), strict=True)
    spans = tuple((first, first + count) for first, count in rows)
    return TokenGrid(spans=spans, prompts=tuple(prompts.tolist()), length=mask.shape[1], ids=ids)
