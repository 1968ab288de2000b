"""Prompts that are to be continued: the block of tokens that they and what is generated will fill."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from moeparity.inputs.tokens.grid import token_grid
from moeparity.inputs.tokens.tokenset import TokenSet
from moeparity.plan.schedule.token_grid import TokenGrid


def widened(tokens: TokenSet, new_tokens: int) -> TokenSet:
    """Each sequence with places for `new_tokens` more behind its last; only these are scored, and pads stand there yet.

    Columns of padding alone behind all sequences are dropped. New tokens have the label of the last one before them.
    """
    lasts = ends(tokens)
    width, rows = int(lasts.max()), torch.arange(len(lasts))
    pads = tokens.input_ids[~tokens.attention_mask]
    ids = _filled(tokens.input_ids, width, new_tokens, int(pads[0]) if len(pads) else 0)
    columns = torch.arange(width + new_tokens)
    scored = (columns >= lasts[:, None]) & (columns < lasts[:, None] + new_tokens)
    labels = None
    if tokens.labels is not None:
        last_labels = tokens.labels[rows, lasts - 1]
        labels = torch.where(scored, last_labels[:, None], _filled(tokens.labels, width, new_tokens, 0))
    return TokenSet(
        input_ids=ids,
        loss_mask=scored,
        attention_mask=_filled(tokens.attention_mask, width, new_tokens, False) | scored,
        labels=labels,
        label_names=tokens.label_names,
    )


def ends(tokens: TokenSet) -> Tensor:
    """The column behind the last token of each sequence, int64 [B]."""
    positions = torch.arange(tokens.attention_mask.shape[1]).expand_as(tokens.attention_mask)
    return positions.masked_fill(~tokens.attention_mask, -1).amax(1) + 1


def widened_grid(tokens: TokenSet, new_tokens: int, *, with_ids: bool) -> TokenGrid:
    """The grid of the widened tokens. Of those that are not known yet no two are taken for the same."""
    wide = widened(tokens, new_tokens)
    unknown = -1 - torch.arange(wide.input_ids.numel()).view_as(wide.input_ids)
    return token_grid(replace(wide, input_ids=wide.input_ids.where(~wide.loss_mask, unknown)), with_ids=with_ids)


def _filled(block: Tensor, width: int, count: int, fill: float) -> Tensor:
    """The first `width` columns of [B, T] and `count` after them."""
    return torch.cat((block[:, :width], block.new_full((len(block), count), fill)), dim=1)
