"""How far the distributions over the whole vocabulary lie apart; plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """The whole distributions over the vocabulary, over scored tokens with finite logits; means unless said otherwise.

    `jsd` is the Jensen-Shannon divergence in nats, `tv` the total variation; `max_tv` its greatest; `top10_jaccard` the
    overlap of the ten likeliest ids of both sides; `rank_change` by how many places the chosen token stands elsewhere.
    """

    jsd: float
    tv: float
    max_tv: float
    top10_jaccard: float
    rank_change: float
