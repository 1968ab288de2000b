"""OpenRLHF's metrics."""

from __future__ import annotations

from dataclasses import replace

from moeparity.metrics.declaration import FORWARD_KL, Metric, Reduce, Source

SOURCE = Source("OpenRLHF/OpenRLHF", "openrlhf/models/loss.py", "3c3be623")

METRICS = (
    Metric(
        name="openrlhf/vllm_kl",
        reduce=Reduce("token mean", "k1"),
        formula="mean over tokens of rollout - old",
        estimates=f"{FORWARD_KL}, can be negative",
        source=SOURCE,
    ),
    Metric(
        name="openrlhf/outside_bounds",
        reduce=Reduce("token mean", "icepop_outside"),
        formula="fraction of tokens with rho outside [0.5, 5.0]; not logged there",
        estimates="tokens that its default bounds act on",
        source=replace(SOURCE, level="inferred"),
        unit="1",
    ),
)
