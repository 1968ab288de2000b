"""Widens prompts that are to be continued, so that the block has places for the new tokens."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from moeparity.inputs.tokens.grid import token_grid
from moeparity.inputs.tokens.tokenset import TokenSet
from moeparity.plan.schedule.token_grid import TokenGrid


def widened(tokens: TokenSet, new_tokens: int) -> TokenSet:
    """Each sequence with places for `new_tokens` more after its last token; only these are scored, and they hold pads
    so far.

    Columns with nothing but padding after all sequences are dropped. New tokens have the label of the token before
    them.
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
        images=None if tokens.images is None else tokens.images.of_columns(width + new_tokens),
        requests=tokens.requests,
    )


def ends(tokens: TokenSet) -> Tensor:
    """The column after the last token of each sequence, int64 [B]."""
    positions = torch.arange(tokens.attention_mask.shape[1]).expand_as(tokens.attention_mask)
    return positions.masked_fill(~tokens.attention_mask, -1).amax(1) + 1


def widened_grid(tokens: TokenSet, new_tokens: int, *, with_ids: bool) -> TokenGrid:
    """The grid of the widened tokens. New tokens, which are not known yet, all count as different."""
    wide = widened(tokens, new_tokens)
    unknown = -1 - torch.arange(wide.input_ids.numel()).view_as(wide.input_ids)
    return token_grid(replace(wide, input_ids=wide.input_ids.where(~wide.loss_mask, unknown)), with_ids=with_ids)


def _filled(block: Tensor, width: int, count: int, fill: float) -> Tensor:
    """The first `width` columns of [B, T] and `count` after them."""
    return torch.cat((block[:, :width], block.new_full((len(block), count), fill)), dim=1)
