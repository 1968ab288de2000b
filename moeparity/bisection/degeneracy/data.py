"""What is degenerate about a run's weights, tokens and logits; plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Degeneracy:
    """Why a pass would say nothing; all counts are 0 and `constant_weights` is empty if nothing is wrong.

    constant_weights: matrices of the checkpoint in which every element is the same number. flat: of the
    `scored_tokens`, those whose logits on some side spread over the vocabulary by less than one ulp of the largest of
    them. distinct: how many of the `sequences` differ from all others; repetitions count once. constant_sequences:
    those of one token id only.
    """

    constant_weights: tuple[str, ...]
    scored_tokens: int
    flat: int
    sequences: int
    distinct: int
    constant_sequences: int
