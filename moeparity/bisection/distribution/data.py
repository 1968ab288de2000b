"""How far the distributions over the whole vocabulary lie apart; plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """How far both sides' distributions over the vocabulary lie apart: means over scored tokens with finite logits.

    jsd: Jensen-Shannon divergence in nats. tv, max_tv: total variation, its mean and maximum. top10_jaccard: overlap of
    both sides' ten likeliest ids. rank_change: how many ranks the chosen token moves.
    """

    jsd: float
    tv: float
    max_tv: float
    top10_jaccard: float
    rank_change: float
