"""tinker's metrics."""

from __future__ import annotations

from functools import partial

from moeparity.metrics.declaration import FORWARD_KL, Metric, Reduce, Source

SOURCE = Source("thinking-machines-lab/tinker-cookbook", "tinker_cookbook/rl/metrics.py", "9dfcc3a2")
_nats = partial(Metric, source=SOURCE)

METRICS = (
    _nats(
        name="tinker/kl_sample_train_v1",
        reduce=Reduce("token mean", "k1"),
        formula="mean over tokens of sampler - trainer",
        estimates=f"{FORWARD_KL}, can be negative",
        healthy="< 0.01",
    ),
    _nats(
        name="tinker/kl_sample_train_v2",
        reduce=Reduce("token mean", "k2"),
        formula="half the mean over tokens of delta^2",
        estimates=f"{FORWARD_KL} for small delta",
        healthy="< 0.01",
    ),
    _nats(
        name="tinker/entropy",
        reduce=Reduce("token mean", "neg_rollout"),
        formula="-mean over tokens of log P_sampler",
        estimates="the sampler's entropy",
    ),
)
