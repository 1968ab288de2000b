"""The grid of a token set, for which schedules are made."""

from __future__ import annotations

from moeparity.inputs.tokens.tokenset import TokenSet
from moeparity.plan.schedule.grid import Grid


def token_grid(tokens: TokenSet, *, with_ids: bool) -> Grid:
    """Where each sequence's tokens lie, and how many of them are prompt: those before the first that is scored, or all.

    `with_ids` keeps the ids themselves, which a prefix cache compares.
    """
    counts, firsts = tokens.attention_mask.sum(1), tokens.attention_mask.int().argmax(1)
    is_scored = tokens.loss_mask.any(1)
    prompts = (tokens.loss_mask.int().argmax(1) - firsts).where(is_scored, counts)
    rows = zip(firsts.tolist(), counts.tolist(), strict=True)
    return Grid(
        spans=tuple((first, first + count) for first, count in rows),
        prompts=tuple(prompts.tolist()),
        length=tokens.input_ids.shape[1],
        ids=tuple(map(tuple, tokens.input_ids.tolist())) if with_ids else None,
    )
