"""Attention masks: which tokens of a batch are real, and which of them can be scored."""

from __future__ import annotations

import torch


def defect(mask: torch.Tensor) -> str | None:
    """Why `mask` [B, T] bool is no padding, naming the first sequence; None where each is padded on one side at most.

    What transformers does with holes inside a sequence is defined too, but nobody trains or serves that.
    """
    steps = mask[:, 1:].int() - mask[:, :-1].int()
    broken = (steps != 0).sum(dim=1) > 1
    empty = ~mask.any(dim=1)
    bad = broken | empty
    if not bool(bad.any()):
        return None
    row = int(bad.int().argmax())
    if bool(empty[row]):
        return f"sequence {row} is padding only; leave it out"
    return f"sequence {row} is not padded on one side only: expected zeros at its left end or at its right end"


def scored(loss_mask: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The tokens of `loss_mask` that are real and follow a real token, whose logits give their log-probability.

    All [B, T] bool. The first column keeps what it has; it has no logits before it and is never scored.
    """
    kept = loss_mask & mask
    kept[:, 1:] &= mask[:, :-1]
    return kept
