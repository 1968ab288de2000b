"""Log-probability metrics of the candidate against the reference; plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """Candidate against reference over all scored tokens; k1, k2, k3, KL and |delta| in nats per token.

    `unequal_tokens` are the scored tokens whose values differ in any bit, `nonfinite_tokens` those with a NaN or an
    infinity on either side. `kl` is the full-vocabulary KL(candidate || reference), `kl_reverse` KL(reference ||
    candidate).
    """

    k1: float
    k2: float
    k3: float
    kl: float
    kl_reverse: float
    mean_abs_delta: float
    max_abs_delta: float
    top1_agreement: float
    nonfinite_tokens: int
    unequal_tokens: int
