"""AReaL's metrics."""

from __future__ import annotations

from dataclasses import replace

from moeparity.metrics.declaration import Metric, Reduce, Source

SOURCE = Source("inclusionAI/AReaL", "areal/utils/functional/functional.py", "4aef98d8d")

METRICS = (
    Metric(
        name="areal/behave_approx_kl",
        reduce=Reduce("token mean", "delta"),
        formula="mean over tokens of prox - old = delta",
        estimates="minus KL(sampler || trainer): the opposite sign of everyone else's",
        source=SOURCE,
    ),
    Metric(
        name="areal/kl_k3",
        reduce=Reduce("token mean", "k3_swapped"),
        formula="mean over tokens of exp(-delta) - 1 + delta",
        estimates="chi2(sampler || trainer) - KL(sampler || trainer): the swapped form, as its rejection uses it",
        source=replace(SOURCE, file="areal/utils/data.py"),
    ),
)
