"""The part of a report about classes of tokens."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassMetrics:
    """Candidate against reference on the tokens of one class: k3 and mean |delta| in nats per scored token, NaN where
    none is scored; of `token_layers` those whose expert set differs.
    """

    name: str
    scored_tokens: int
    k3: float
    mean_abs_delta: float
    token_layers: int
    set_flips: int
