"""Kernel of `preference`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from moeparity.numerics import rounding
from moeparity.ops.preference import CHOSEN, OUTCOMES


def preference(
    score: torch.Tensor,
    mask: torch.Tensor,
    *,
    w: Mapping[str, torch.Tensor],
    p: Mapping[str, Any],
    at: Mapping[str, Any],
) -> torch.Tensor:
    """score [B, T, 1], mask [B, T] bool, B even -> logits [B, T, 2]; a chosen sequence of one token has none."""
    rows, last = torch.arange(len(mask), device=mask.device), last_tokens(mask)
    scores = score[rows, last, 0]
    # Negation is exact.
    differences = rounding.add(scores[0::2], -scores[1::2], at["difference"])
    logits = differences.new_zeros(*mask.shape, OUTCOMES)
    has_place = last[0::2] > 0
    logits[rows[0::2][has_place], last[0::2][has_place] - 1, CHOSEN] = differences[has_place]
    return logits


def last_tokens(mask: torch.Tensor) -> torch.Tensor:
    """int64 [B]: the index of the last real token of each sequence; mask: bool [B, T]."""
    return (torch.arange(mask.shape[1], device=mask.device) * mask).argmax(-1)
