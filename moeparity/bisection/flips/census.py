"""The counts of routing flips (`Census`): a map of every token in every layer, and the counts that go with it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from moeparity.engine.walker import WalkerName
from moeparity.metrics.routing import Drift, Flips, expert_pairs, flips

COMPARED, FLIPPED, SLOTS, DISJOINT, ROOT, AFTER_OWN, AFTER_OTHER, TIED = (1 << bit for bit in range(8))
"""The bits of one token in one layer of the map, from the lowest.

COMPARED: routes were compared. FLIPPED: another expert set. SLOTS: another expert id in some slot. DISJOINT: no expert
in common. ROOT: a root flip. AFTER_OWN: a flip that is no root, and the same token flipped in an earlier layer.
AFTER_OTHER: neither of these, and an earlier token of the sequence flipped before. TIED: an exact tie at either side's
cut.
"""

MAP_BITS: dict[str, int] = {
    "compared": COMPARED,
    "set_differs": FLIPPED,
    "slots_differ": SLOTS,
    "zero_overlap": DISJOINT,
    "root": ROOT,
    "after_own_flip": AFTER_OWN,
    "after_others_flip": AFTER_OTHER,
    "tied": TIED,
}
"""The bits of the map by the names under which files and JSON give them."""

BINS = 34
"""Margins and perturbations are counted in bins of powers of two: below 1 ulp, 1 to 2, 2 to 4, ...; the last is open.
"""


@dataclass(slots=True)
class MarginCounts:
    """How many tokens of one layer have which margin at the cut and which perturbation; `Cut` and `perturbation` in
    `moeparity.metrics` define both.

    dtype: of the reference's selection scores; its ulps are the unit.
    bins: int64 [4, BINS]: tokens by margin, flips by margin, tokens by perturbation, flips by perturbation. Exact ties
        are in no bin, nor are flips whose sides kept other groups of experts, since those have no common cut.
    ties, tie_flips: tokens with an exact tie at either side's cut, and flips among them.
    group_flips: flips without a tie whose sides kept other groups of experts.
    within_reach: tokens in `bins` whose margin is at most 2 x the perturbation; every flip in `bins` is one of them.
    """

    dtype: str
    bins: Tensor = field(default_factory=lambda: torch.zeros(4, BINS, dtype=torch.int64))
    ties: int = 0
    tie_flips: int = 0
    group_flips: int = 0
    within_reach: int = 0

    def join(self, part: MarginCounts) -> None:
        """Add the counts of other tokens."""
        self.bins += part.bins
        self.ties, self.tie_flips = self.ties + part.ties, self.tie_flips + part.tie_flips
        self.group_flips, self.within_reach = self.group_flips + part.group_flips, self.within_reach + part.within_reach

    def add(self, margin: Tensor, perturbations: Tensor, flip_mask: Tensor, ties: Tensor, groups: Tensor) -> None:
        """Count N tokens: margins and perturbations fp64 [N] in ulps; flips, ties, and whether other groups were kept,
        bool [N].
        """
        self.ties += int(ties.sum())
        self.tie_flips += int((ties & flip_mask).sum())
        self.group_flips += int((flip_mask & groups & ~ties).sum())
        cut_mask = ~ties & ~(flip_mask & groups) & ~margin.isnan() & ~perturbations.isnan()
        self.within_reach += int((cut_mask & (margin <= 2 * perturbations)).sum())
        for row, values in enumerate((margin, perturbations)):
            for column, mask in enumerate((cut_mask, cut_mask & flip_mask)):
                self.bins[2 * row + column] += torch.bincount(bin_of(values[mask]), minlength=BINS)


@dataclass(slots=True)
class Census:
    """What was counted of one candidate's routes against the reference's. A layer's *place* is its index in `layers`.

    map: uint8 [MoE layers, B, T], `MAP_BITS` of each token in each layer; the counts of flips are counts in it.
    layers: the number in the model of each layer of the map, -1 if unknown. top_k: experts per token.
    flips, drift, pairs, margins: by place; a layer whose scores can't be recomputed has no margins.
    root_at: (place, `gate` or `router`) -> root flips whose row first differs there.
    unknown: place -> flips whose gate lies inside a user's function, so that nobody knows whether they are roots.
    left_at: (node, through other tokens) -> of the tokens that flip in some layer, how many left the reference's bits
        at this node; empty if no node was observed.
    also: trial -> token-layers that flip both in it and in the candidate.
    cost: fp64 [2, 4, B]; first axis: scored tokens whose position flips in no layer, in some layer; second axis: number
        of tokens, sums of KL(candidate || reference), of k3 and of |delta|, in nats. None if no log-probability was
        seen.
    margin, perturbation: place -> fp32 [B, T] in ulps, NaN where unknown.
    experts: place -> all flips, in the order of the waves: int64 [flips, 2 + 2 K], each row its sequence, its position,
        the reference's experts and the candidate's experts.
    """

    map: Tensor
    layers: list[int]
    top_k: int
    flips: dict[int, Flips] = field(default_factory=dict)
    drift: dict[int, Drift] = field(default_factory=dict)
    pairs: dict[int, Counter[tuple[int, int]]] = field(default_factory=dict)
    margins: dict[int, MarginCounts] = field(default_factory=dict)
    root_at: Counter[tuple[int, str]] = field(default_factory=Counter)
    unknown: Counter[int] = field(default_factory=Counter)
    left_at: Counter[tuple[str, bool]] = field(default_factory=Counter)
    also: Counter[WalkerName] = field(default_factory=Counter)
    cost: Tensor | None = None
    margin: dict[int, Tensor] = field(default_factory=dict)
    perturbation: dict[int, Tensor] = field(default_factory=dict)
    experts: dict[int, list[Tensor]] = field(default_factory=dict)

    def add(self, place: int, rows: slice, real: Tensor, ids: tuple[Tensor, Tensor]) -> Tensor:
        """Count one layer's routes of the sequences `rows`; gives the flips among the `real` tokens, bool [b, T], on
        the CPU.

        real: bool [b, T]. ids: int64 [b, T, K] of the reference and of the candidate.
        """
        ours, theirs = (side[real] for side in ids)
        counts, flip_mask = flips(ours, theirs)
        self.flips[place] = self.flips[place] + counts if place in self.flips else counts
        self.pairs[place] = self.pairs.get(place, Counter()) + expert_pairs(ours[flip_mask], theirs[flip_mask])
        overlap = (ours.unsqueeze(-1) == theirs.unsqueeze(-2)).any(-1).any(-1)
        bits = COMPARED + FLIPPED * flip_mask + SLOTS * (ours != theirs).any(-1) + DISJOINT * ~overlap
        real = real.cpu()
        self.map[place, rows][real] = bits.to("cpu", torch.uint8)
        flip_map = torch.zeros_like(real)
        flip_map[real] = flip_mask.cpu()
        at = flip_map.nonzero() + torch.tensor([rows.start, 0])
        chosen = torch.cat([ours[flip_mask], theirs[flip_mask]], -1).cpu()
        self.experts.setdefault(place, []).append(torch.cat([at, chosen], -1))
        return flip_map

    def part(self, rows: slice) -> Census:
        """This census, with everything that has an axis of sequences cut to `rows`. It must have seen no other
        sequences.
        """
        return replace(
            self,
            map=self.map[:, rows],
            cost=None if self.cost is None else self.cost[..., rows],
            margin={place: values[rows] for place, values in self.margin.items()},
            perturbation={place: values[rows] for place, values in self.perturbation.items()},
        )

    def join(self, part: Census, rows: slice) -> None:
        """Add the `part` of later waves, the sequences `rows`."""
        self.map[:, rows] = part.map
        for place, counts in part.flips.items():
            self.flips[place] = self.flips[place] + counts if place in self.flips else counts
        for place, drift in part.drift.items():
            self.drift[place] = self.drift.get(place, Drift()) + drift
        for place, pairs in part.pairs.items():
            self.pairs[place] = self.pairs.get(place, Counter()) + pairs
        for place, tally in part.margins.items():
            self.margins.setdefault(place, MarginCounts(tally.dtype)).join(tally)
        self.root_at.update(part.root_at)
        self.unknown.update(part.unknown)
        self.left_at.update(part.left_at)
        self.also.update(part.also)
        if part.cost is not None:
            self.cost = part.cost.new_zeros(2, 4, self.map.shape[1]) if self.cost is None else self.cost
            self.cost[..., rows] = part.cost
        for ours, theirs in ((self.margin, part.margin), (self.perturbation, part.perturbation)):
            for place, values in theirs.items():
                ours.setdefault(place, values.new_full(self.map.shape[1:], torch.nan))[rows] = values
        for place, flipped in part.experts.items():
            self.experts.setdefault(place, []).extend(flipped)

    def keep_cuts(self, place: int, rows: slice, real: Tensor, margin: Tensor, perturbations: Tensor) -> None:
        """Keep margins and perturbations, both fp64 [N], of the N tokens marked in `real`, bool [b, T]."""
        for cuts, values in ((self.margin, margin), (self.perturbation, perturbations)):
            whole = cuts.setdefault(place, torch.full(self.map.shape[1:], torch.nan, dtype=torch.float32))
            whole[rows][real] = values.float()

    def mark(self, place: int, rows: slice, mask: Tensor, bit: int) -> None:
        """Set a bit at the tokens marked in `mask`, bool [b, T]."""
        self.map[place, rows] |= mask.to(torch.uint8) * bit

    def has(self, bit: int) -> Tensor:
        """bool [MoE layers, B, T]: the tokens with a bit set."""
        return (self.map & bit) != 0


def bin_of(ulps: Tensor) -> Tensor:
    """int64 [N]: 0 below 1 ulp, i from 2 ** (i - 1) ulps to below 2 ** i, the last bin beyond; ulps fp64 [N]."""
    _, exponent = torch.frexp(ulps.clamp(0, 2.0**BINS))
    return exponent.clamp(0, BINS - 1).to(torch.int64)
