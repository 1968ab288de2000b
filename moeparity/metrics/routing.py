"""Routing flips: where a router picks other experts in the candidate than in the reference.

Every definition stands here once, under the name that reports print; `docs/flips.md` lists them.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

import torch
from torch import Tensor

from moeparity.metrics.exact import Exact, summed


@dataclass(frozen=True, slots=True, kw_only=True)
class Flips:
    """Counts of routing differences of one router, which add up over micro-batches and over layers.

    A and B are the top-k expert sets of one token in the reference and in the candidate, |A| = |B| = k. Every count but
    `slots_replaced` is in tokens. After adding over layers, a "token" is one token in one layer.

    tokens: tokens compared.
    set_flips: tokens with A != B. Over `tokens`, in all layers, this is set@token-layer, the "flip rate" of Rollout
        Routing Replay (arXiv:2510.11370).
    slot_flips: tokens whose ordered ids differ in at least one slot: every set flip, and reorderings of equal sets.
    slots_replaced: sum over tokens of k - |A & B|, in slots. Divided by tokens times k it is 1 - slot overlap.
    zero_overlap: tokens with A & B empty, of which miles allows 1 % (replay_check_max_mismatch_fraction).
    """

    tokens: int
    set_flips: int
    slot_flips: int
    slots_replaced: int
    zero_overlap: int

    def __add__(self, other: Flips) -> Flips:
        """The counts of both together."""
        return summed(self, other)


def flips(reference_ids: Tensor, candidate_ids: Tensor) -> tuple[Flips, Tensor]:
    """Routing flips of one router, and the mask of tokens with another expert set.

    reference_ids, candidate_ids: int64 [..., K], K >= 1, ids >= 0, none twice for one token, slots in the order in
    which the combine adds them. The mask is bool [...]; `|` of the masks of all layers marks the tokens that flip in
    any layer (any@token).
    Raises TypeError for another dtype, ValueError for other shapes, a negative id (a missing route) or a repeated one.
    """
    if reference_ids.shape != candidate_ids.shape or not reference_ids.shape or not reference_ids.shape[-1]:
        shapes = f"{tuple(reference_ids.shape)} and {tuple(candidate_ids.shape)}"
        raise ValueError(f"expert ids of equal shape [..., K] with K >= 1 expected, given {shapes}")
    _check("reference_ids", reference_ids)
    _check("candidate_ids", candidate_ids)
    shared = (reference_ids.unsqueeze(-1) == candidate_ids.unsqueeze(-2)).any(-1).sum(-1)
    replacements = reference_ids.shape[-1] - shared
    mask = replacements > 0
    counts = Flips(
        tokens=mask.numel(),
        set_flips=int(mask.count_nonzero()),
        slot_flips=int((reference_ids != candidate_ids).any(-1).count_nonzero()),
        slots_replaced=int(replacements.sum()),
        zero_overlap=int((shared == 0).count_nonzero()),
    )
    return counts, mask


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """How far routing weights lie apart for experts that both sides picked; adds up over micro-batches and layers.

    shared: number of slots of one side whose expert the other side has too, in whatever slot.
    sum_abs, max_abs: of |candidate's weight - reference's| over these, subtracted and summed in fp64; NaN if one is.
    """

    shared: int = 0
    sum_abs: Exact = field(default_factory=Exact)
    max_abs: float = 0.0

    @property
    def mean_abs(self) -> float:
        """Mean per shared slot; NaN if there is none."""
        return self.sum_abs / self.shared if self.shared else math.nan

    def __add__(self, other: Drift) -> Drift:
        """Both together. `max_abs` is not taken by max() alone, which may drop a NaN."""
        larger = other.max_abs if math.isnan(other.max_abs) or other.max_abs > self.max_abs else self.max_abs
        return summed(self, other, max_abs=larger)


def weight_drift(reference: tuple[Tensor, Tensor], candidate: tuple[Tensor, Tensor]) -> Drift:
    """Weight drift of one router: |w_reference - w_candidate| of experts that both sides picked.

    Each side: ids int64 and weights of any float, both [..., K] in slot order. This is what a replay of ids alone
    leaves different (miles issue 2722).
    """
    (ids, weights), (other_ids, other_weights) = reference, candidate
    matches = ids.unsqueeze(-1) == other_ids.unsqueeze(-2)
    apart = (weights.double().unsqueeze(-1) - other_weights.double().unsqueeze(-2)).abs()[matches]
    most = float(apart.max()) if apart.numel() else 0.0
    return Drift(shared=apart.numel(), sum_abs=Exact(float(apart.sum())), max_abs=most)


def expert_pairs(reference_ids: Tensor, candidate_ids: Tensor) -> Counter[tuple[int, int]]:
    """(expert that only the reference picked, expert that the candidate picked in its place) -> number of tokens.

    reference_ids, candidate_ids: int64 [N, K]. If a token has several replaced experts, they are paired in slot order;
    with one replaced expert, by far the most frequent case, there is nothing to choose.
    """
    reference_only = ~(reference_ids.unsqueeze(-1) == candidate_ids.unsqueeze(-2)).any(-1)
    candidate_only = ~(candidate_ids.unsqueeze(-1) == reference_ids.unsqueeze(-2)).any(-1)
    # Both masks have the same number of elements in each row, so elements correspond in row order.
    return Counter(zip(reference_ids[reference_only].tolist(), candidate_ids[candidate_only].tolist(), strict=True))


def layers_per_token(flipped: Tensor) -> Tensor:
    """In how many layers each token's expert set differs: `flipped` bool [layers, ...] -> int64 [...].

    Its mean over all tokens is layers/token, the fraction that is not 0 is any@token (both of arXiv:2510.11370).
    """
    return flipped.sum(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """The cut between chosen and other experts of each token; every field is [N].

    margin: fp64, the lowest selection score among the chosen experts minus the highest among the others, in ulps of the
        former; infinite if no other expert could be chosen, NaN if a score is.
    ulp: fp64, that ulp: the spacing of the scores' dtype at the lowest chosen score.
    runner_up: int64, the best expert that was not chosen.
    """

    margin: Tensor
    ulp: Tensor
    runner_up: Tensor


def cut(scores: Tensor, ids: Tensor) -> Cut:
    """The cut of one router.

    scores: any float [N, E], by which experts are ranked, with bias and masked groups (-inf for an expert that may not
    be chosen). ids: int64 [N, K], the chosen experts, K < E.
    A margin of 0 is an exact tie, which the tie-break rule decides; a negative margin means that other ids were forced.
    """
    lowest = scores.gather(1, ids).amin(-1).double()
    greatest, runner_up = scores.double().scatter(1, ids, -math.inf).max(-1)
    info = torch.finfo(scores.dtype)
    _, exponent = torch.frexp(lowest.abs())
    ulp = torch.ldexp(torch.full_like(lowest, info.eps), exponent - 1)
    # The spacing stays the same below the smallest normal number, and frexp has no exponent for 0.
    ulp = torch.where(lowest.abs() < info.smallest_normal, info.smallest_normal * info.eps, ulp)
    return Cut(margin=(lowest - greatest) / ulp, ulp=ulp, runner_up=runner_up)


def perturbation(reference: Tensor, candidate: Tensor, ids: tuple[Tensor, Tensor], at: Cut) -> Tensor:
    """How far selection scores moved near the cut: fp64 [N], in ulps of the reference's cut.

    It is the largest |candidate's score - reference's| among the experts that either side chose and the reference's
    runner-up. reference, candidate: scores, any float [N, E], before groups are masked. ids: int64 [N, K] of both
    sides. A set flip at a cut of the same experts needs margin <= 2 x perturbation, since one score falls and another
    rises by at most the perturbation.
    """
    near = torch.cat([*ids, at.runner_up.unsqueeze(-1)], dim=-1)
    return (candidate.double() - reference.double()).abs().gather(1, near).amax(-1) / at.ulp


def _check(name: str, ids: Tensor) -> None:
    if ids.dtype != torch.int64:
        raise TypeError(f"{name} is {ids.dtype}; int64 expected")
    sorted_ids = ids.sort(-1).values
    if bool((sorted_ids[..., 0] < 0).any()):
        raise ValueError(f"{name} has a negative expert id: a missing route can't be compared")
    if bool((sorted_ids[..., 1:] == sorted_ids[..., :-1]).any()):
        raise ValueError(f"{name} names one expert twice for one token")
