"""The formulas of all token quantities and of what is made of a sequence's sums. They are computed only here.

A function of tokens takes a Chunk and gives fp64 [N]; a function of sequences takes `Sums` and gives fp64 [B]. Natural
logarithms; delta = log P_trainer - log P_sampler.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from moeparity.metrics.chunk import Chunk

FP32_EXP = 88.72283905206835
"""Above this, exp overflows in fp32, in which trainers compute."""
VERL_SAFETY, VERL_THRESHOLD = 20.0, 2.0
TRL_CAP = 3.0
PIPELINE_EPSILON = 0.02
DPPO = 0.2
ICEPOP = (0.5, 5.0)
GEOMETRIC = (0.999, 1.002)


def k1(delta: Tensor) -> Tensor:
    """-delta, nats: unbiased for KL(sampler || trainer), can be negative."""
    return 0.0 - delta


def k2(delta: Tensor) -> Tensor:
    """delta^2 / 2, nats: biased, of low variance."""
    return delta.square() / 2


def k3(delta: Tensor) -> Tensor:
    """exp(delta) - 1 - delta, nats, unclamped: unbiased for KL(sampler || trainer), never negative.

    Overflows to inf for delta above 709, and is inf for an infinite delta. Source: J. Schulman, "Approximating KL
    divergence", 2020.
    """
    # inf - inf would be NaN, but the limit is inf.
    return torch.where(delta == math.inf, math.inf, delta.expm1() - delta)


def k3_swapped(delta: Tensor) -> Tensor:
    """exp(-delta) - 1 + delta, nats: estimates chi2(sampler || trainer) - KL(sampler || trainer) on sampled tokens."""
    return k3(0.0 - delta)


def k3_clamped(delta: Tensor) -> Tensor:
    """k3 of delta clamped to +-20, the result clamped to +-10: verl's `kl_penalty` and NeMo-RL's default
    `calculate_kl`.
    """
    return k3(delta.clamp(-20, 20)).clamp(-10, 10)


def js_surrogate(chunk: Chunk) -> Tensor:
    """NeMo-RL's JS: with log m = log(P_trainer/2 + P_sampler/2), half of k3(log P - log m) for each side, added up.

    It depends on the sampled token's two probabilities only, so it is not the Jensen-Shannon divergence of the
    distributions.
    """
    mixture = torch.logaddexp(chunk.trainer, chunk.rollout) - math.log(2)
    both_zero = mixture == -math.inf
    parts = [torch.where(both_zero, 0.0, side - mixture) for side in (chunk.trainer, chunk.rollout)]
    return (k3(parts[0]) + k3(parts[1])) / 2


def zeroed_ratio(delta: Tensor) -> Tensor:
    """rho, set to 0 where it overflows in fp32 (NeMo-RL's nan_to_num of NaN and +-inf)."""
    return torch.where(delta > FP32_EXP, 0.0, delta.exp())


def truncated(delta: Tensor) -> Tensor:
    """verl's token weight: exp of delta clamped to +-20, truncated at 2.0."""
    return delta.clamp(-VERL_SAFETY, VERL_SAFETY).exp().clamp(max=VERL_THRESHOLD)


def beyond(delta: Tensor, tau: float) -> Tensor:
    """1 where max(rho, 1/rho) > tau, else 0."""
    return (delta.abs() > math.log(tau)).double()


def _dp(chunk: Chunk) -> Tensor:
    return chunk.trainer.exp() - chunk.rollout.exp()


def _dppo_masked(chunk: Chunk) -> Tensor:
    change = _dp(chunk)
    return torch.where(chunk.values["advantages"] > 0, change > DPPO, change < -DPPO).double()


def _approx_entropy(chunk: Chunk) -> Tensor:
    current = chunk.values["current"]
    # A probability of 0 contributes 0, the limit of x log x.
    return 0.0 - torch.where(current == -math.inf, 0.0, (current - chunk.rollout).exp() * current)


def _current_ratio(chunk: Chunk) -> Tensor:
    # -inf on both sides is no drift.
    return (chunk.values["current"] - chunk.trainer).nan_to_num(nan=0.0).clamp(-20, 20).exp()


def _of(function: Callable[[Tensor], Tensor]) -> Callable[[Chunk], Tensor]:
    return lambda chunk: function(chunk.delta)


TOKEN: Mapping[str, Callable[[Chunk], Tensor]] = {
    "delta": lambda chunk: chunk.delta,
    "trainer": lambda chunk: chunk.trainer,
    "rollout": lambda chunk: chunk.rollout,
    "abs_delta": _of(torch.abs),
    "k1": _of(k1),
    "k2": _of(k2),
    "k3": _of(k3),
    "k3_swapped": _of(k3_swapped),
    "k3_clamped": _of(k3_clamped),
    "finite_delta": _of(lambda delta: delta.nan_to_num(posinf=0.0, neginf=0.0)),
    "finite_abs_delta": _of(lambda delta: delta.abs().nan_to_num(posinf=0.0)),
    "ratio_less_1": _of(torch.expm1),
    "abs_ratio_less_1": _of(lambda delta: delta.expm1().abs()),
    "mult_error_less_1": _of(lambda delta: delta.abs().expm1()),
    "chi2": _of(lambda delta: (2 * delta).expm1()),
    "chi2_clamped": _of(lambda delta: (2 * delta.clamp(-VERL_SAFETY, VERL_SAFETY)).expm1()),
    "js_surrogate": js_surrogate,
    "zeroed_ratio": _of(zeroed_ratio),
    "truncated": _of(truncated),
    "truncated_squared": _of(lambda delta: truncated(delta).square()),
    "truncated_at_3": _of(lambda delta: delta.exp().clamp(max=TRL_CAP)),
    "above_threshold": _of(lambda delta: (delta > math.log(VERL_THRESHOLD)).double()),
    "below_threshold": _of(lambda delta: (delta < -math.log(VERL_THRESHOLD)).double()),
    "icepop_outside": _of(lambda delta: ((delta < math.log(ICEPOP[0])) | (delta > math.log(ICEPOP[1]))).double()),
    "ratio_clamped_ppo": _of(lambda delta: (delta.expm1().abs() > PIPELINE_EPSILON).double()),
    "ratio_clamped_reinforce": _of(lambda delta: (delta.expm1() > PIPELINE_EPSILON).double()),
    "ratio_less_1_reinforce": _of(lambda delta: delta.expm1().clamp(max=PIPELINE_EPSILON)),
    "ratio_reinforce": _of(lambda delta: delta.exp().clamp(max=1 + PIPELINE_EPSILON)),
    "ratio_reinforce_squared": _of(lambda delta: delta.exp().clamp(max=1 + PIPELINE_EPSILON).square()),
    "abs_dp": lambda chunk: _dp(chunk).abs(),
    "dp_beyond": lambda chunk: (_dp(chunk).abs() > DPPO).double(),
    "dppo_masked": _dppo_masked,
    "neg_rollout": lambda chunk: 0.0 - chunk.rollout,
    "approx_entropy": _approx_entropy,
    "entropy": lambda chunk: chunk.values["entropy"],
    "current_ratio": _current_ratio,
    "current_ratio_squared": lambda chunk: _current_ratio(chunk).square(),
    **{f"beyond_{tau}": _of(partial(beyond, tau=tau)) for tau in (2, 3, 5, 10)},
}
"""Quantities of a token, by name."""


SHARES = frozenset(
    {
        *("above_threshold", "below_threshold", "icepop_outside", "ratio_clamped_ppo", "ratio_clamped_reinforce"),
        *("dp_beyond", "dppo_masked", "beyond_2", "beyond_3", "beyond_5", "beyond_10"),
        *("mult_error_above_2", "sequence_masked", "geometric_outside"),
    }
)
"""Quantities that are 0 or 1, so that their means are rates of events."""


@dataclass(frozen=True, slots=True)
class Sums:
    """What is kept of sequences: `counts` of scored tokens (all above 0) and `sums` of token quantities, fp64 [B]."""

    counts: Tensor
    sums: Mapping[str, Tensor]

    def mean(self, name: str) -> Tensor:
        """Each sequence's mean over its tokens."""
        return self.sums[name] / self.counts


def _sequence_ratio(sums: Sums) -> Tensor:
    return sums.sums["delta"].exp()


def _sequence_mask(sums: Sums) -> Tensor:
    ratio = _sequence_ratio(sums)
    return torch.where(ratio > TRL_CAP, 0.0, ratio)


def _kish(sums: Sums) -> Tensor:
    return sums.sums["current_ratio"].square() / (sums.counts * sums.sums["current_ratio_squared"])


def _geometric_outside(sums: Sums) -> Tensor:
    mean = sums.mean("finite_delta")
    return ((mean < math.log(GEOMETRIC[0])) | (mean > math.log(GEOMETRIC[1]))).double()


SEQUENCE: Mapping[str, tuple[tuple[str, ...], Callable[[Sums], Tensor]]] = {
    "trainer_ppl": (("trainer",), lambda sums: (0.0 - sums.mean("trainer")).exp()),
    "rollout_ppl": (("rollout",), lambda sums: (0.0 - sums.mean("rollout")).exp()),
    "log_ppl_diff": (("delta",), lambda sums: 0.0 - sums.mean("delta")),
    "log_ppl_abs_diff": (("delta",), lambda sums: sums.mean("delta").abs()),
    "ppl_ratio_less_1": (("delta",), lambda sums: (0.0 - sums.mean("delta")).expm1()),
    "chi2_seq": (("delta",), lambda sums: (2 * sums.sums["delta"].clamp(-VERL_SAFETY, VERL_SAFETY)).expm1()),
    "mult_error": (("mult_error_less_1",), lambda sums: 1 + sums.mean("mult_error_less_1")),
    "mult_error_above_2": (("mult_error_less_1",), lambda sums: (sums.mean("mult_error_less_1") > 1).double()),
    "sequence_ratio_zeroed": (("delta",), lambda sums: zeroed_ratio(sums.sums["delta"])),
    "sequence_mask": (("delta",), _sequence_mask),
    "sequence_masked": (("delta",), lambda sums: (_sequence_ratio(sums) > TRL_CAP).double()),
    "geometric_outside": (("finite_delta",), _geometric_outside),
    "truncated_mean": (("truncated",), lambda sums: sums.mean("truncated")),
    "kish": (("current_ratio", "current_ratio_squared"), _kish),
}
"""Quantities that a sequence has as a whole, by name: the token quantities that they need, and the formula."""
