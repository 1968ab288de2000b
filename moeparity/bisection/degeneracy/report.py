"""What is degenerate about a run's weights, tokens and logits; plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Degeneracy:
    """Why a pass would say nothing; all counts 0 and no weights where nothing is wrong.

    `constant_weights` are matrices of the checkpoint that hold one number only. Of `scored_tokens` those are `flat`
    whose logits, on either side, spread over the vocabulary by less than one rounding of the largest of them. Of
    `sequences` all but `distinct` repeat another one, and count once; `constant_sequences` hold one token id only.
    """

    constant_weights: tuple[str, ...]
    scored_tokens: int
    flat: int
    sequences: int
    distinct: int
    constant_sequences: int
