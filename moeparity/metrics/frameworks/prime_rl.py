"""prime-rl's metrics."""

from __future__ import annotations

from functools import partial

from moeparity.metrics.declaration import FORWARD_KL, Metric, Reduce, Source

SOURCE = Source("PrimeIntellect-ai/prime-rl", "src/prime_rl/trainer/rl/loss.py", "559b44772")
_nats = partial(Metric, source=SOURCE)
_number = partial(Metric, source=SOURCE, unit="1")


METRICS = (
    _nats(
        name="prime-rl/mismatch_kl/mean",
        reduce=Reduce("token mean", "k3"),
        formula="mean over tokens of exp(delta) - delta - 1",
        estimates=FORWARD_KL,
        healthy="<= 0.0004 replayed, <= 0.0011 not (DSV4-Flash, 20 steps)",
        alarm="0.015 in all of 20 steps (to merge a model)",
        alarm_above=0.015,
    ),
    _nats(
        name="prime-rl/mismatch_kl/std",
        reduce=Reduce("of totals", "k3_std"),
        formula="standard deviation (n - 1) of it over tokens",
        estimates="the spread of k3",
    ),
    _nats(
        name="prime-rl/mismatch_kl/max",
        reduce=Reduce("token max", "k3"),
        formula="the greatest k3",
        estimates="the worst token",
    ),
    _number(
        name="prime-rl/kl_ent_ratio",
        reduce=Reduce("of totals", "kl_ent_ratio"),
        formula="mean k3 / mean entropy",
        estimates="the mismatch beside the policy's own entropy",
        needs=("entropy",),
    ),
    _number(
        name="prime-rl/is_masked",
        reduce=Reduce("sequence mean", "dppo_masked"),
        formula="mean over sequences of the fraction of tokens with P_trainer - P_sampler > 0.2 at advantages > 0, or "
        "< -0.2 at others",
        estimates="tokens that DPPO masks",
        needs=("advantages",),
    ),
    _number(
        name="prime-rl/probs_moved",
        reduce=Reduce("token mean", "dp_beyond"),
        formula="fraction of tokens with |P_trainer - P_sampler| > 0.2",
        estimates="an upper bound on what DPPO masks, where the log has no advantages",
    ),
)
