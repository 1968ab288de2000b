"""Routing flips: where one router picks other experts in the candidate than in the reference."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Flips:
    """Counts of routing differences of one router, which add up over micro-batches and over layers.

    A and B are the top-k expert sets of one token in the reference and in the candidate, |A| = |B| = k. Every count is
    in tokens except `slots_replaced`. After adding over layers a "token" is one token in one layer.

    tokens: tokens compared.
    set_flips: tokens with A != B. Over `tokens` and all layers this is set@token-layer, the "flip rate" of
        Rollout Routing Replay (arXiv:2510.11370).
    slot_flips: tokens whose ordered ids differ in at least one slot: every set flip, and reorderings of equal sets.
    slots_replaced: sum over tokens of k - |A & B|, in slots.
    zero_overlap: tokens with A & B empty.
    """

    tokens: int
    set_flips: int
    slot_flips: int
    slots_replaced: int
    zero_overlap: int

    def __add__(self, other: Flips) -> Flips:
        """The counts of both together."""
        return Flips(
            tokens=self.tokens + other.tokens,
            set_flips=self.set_flips + other.set_flips,
            slot_flips=self.slot_flips + other.slot_flips,
            slots_replaced=self.slots_replaced + other.slots_replaced,
            zero_overlap=self.zero_overlap + other.zero_overlap,
        )


def flips(reference_ids: Tensor, candidate_ids: Tensor) -> tuple[Flips, Tensor]:
    """Routing flips of one router, and the mask of the tokens whose expert set differs.

    Shapes: both [..., K], K >= 1, K the same, slots in the order in which the combine adds them; the mask is bool
    [...]. Dtype: int64, ids >= 0, none twice for one token. The `|` of the masks of all layers marks the tokens that
    flipped in any layer (any@token).
    Raises TypeError for another dtype, ValueError for other shapes, a negative id (a missing route) or a repeated one.
    """
    if reference_ids.shape != candidate_ids.shape or not reference_ids.shape or not reference_ids.shape[-1]:
        shapes = f"{tuple(reference_ids.shape)} and {tuple(candidate_ids.shape)}"
        raise ValueError(f"expert ids of equal shape [..., K] with K >= 1 expected, given {shapes}")
    _check("reference_ids", reference_ids)
    _check("candidate_ids", candidate_ids)
    shared = (reference_ids.unsqueeze(-1) == candidate_ids.unsqueeze(-2)).any(-1).sum(-1)
    replaced = reference_ids.shape[-1] - shared
    mask = replaced > 0
    counts = Flips(
        tokens=mask.numel(),
        set_flips=int(mask.count_nonzero()),
        slot_flips=int((reference_ids != candidate_ids).any(-1).count_nonzero()),
        slots_replaced=int(replaced.sum()),
        zero_overlap=int((shared == 0).count_nonzero()),
    )
    return counts, mask


def _check(name: str, ids: Tensor) -> None:
    if ids.dtype != torch.int64:
        raise TypeError(f"{name} is {ids.dtype}; int64 expected")
    ordered = ids.sort(-1).values
    if bool((ordered[..., 0] < 0).any()):
        raise ValueError(f"{name} has a negative expert id: a missing route can't be compared")
    if bool((ordered[..., 1:] == ordered[..., :-1]).any()):
        raise ValueError(f"{name} names one expert twice for one token")
