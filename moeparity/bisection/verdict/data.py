"""Log-probability metrics of the candidate against the reference; plain data."""

from __future__ import annotations

from dataclasses import dataclass

from moeparity.metrics.verdict import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """Candidate against reference over all scored tokens; k1, k2, k3, KL and |delta| in nats per token.

    kl, kl_reverse: full-vocabulary KL(candidate || reference) and KL(reference || candidate). unequal_tokens: scored
    tokens whose values differ in any bit. nonfinite_tokens: those with a NaN or an infinity on either side.
    outside_tokens: scored tokens that a side leaves out of what it samples from, so that their log-probability is -inf;
    they are in none of the numbers of sampled tokens. unshared_tokens: scored tokens at which the candidate keeps
    tokens that the reference leaves out; there the KL, which is infinite, is summed over the tokens that both keep.
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
    outside_tokens: int = 0
    unshared_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdicts:
    """The verdict, and the metrics beside the gate's."""

    verdict: Verdict
    metrics: Metrics
