"""The metrics of miles, which derives from slime."""

from __future__ import annotations

from dataclasses import replace

from moeparity.metrics.declaration import FORWARD_KL, Metric, Reduce, Source

SOURCE = Source("radixark/miles", "miles/backends/training_utils/loss_hub/losses.py", "31f1ca961")

METRICS = (
    Metric(
        name="miles/train_rollout_logprob_abs_diff",
        reduce=Reduce("sequence mean", "finite_abs_delta"),
        formula="mean over sequences of mean |delta|",
        estimates="the size of delta, every sequence weighing the same",
        source=SOURCE,
        not_finite="an infinite |delta| counts as 0",
        healthy="0.010 to 0.028",
        alarm="1e-3 (comparator)",
        alarm_above=1e-3,
    ),
    Metric(
        name="miles/train_rollout_kl",
        reduce=Reduce("sequence mean", "k3_clamped"),
        formula="mean over sequences of mean k3 (low_var_kl)",
        estimates=f"{FORWARD_KL}, cut off",
        source=SOURCE,
        clamp="delta to +-20, result to +-10",
    ),
    Metric(
        name="miles/ess_ratio",
        reduce=Reduce("mean over sequences", "kish"),
        formula="mean over sequences of (sum w)^2 / (n sum w^2), w = exp(current - trainer)",
        estimates="drift of the policy within a step, no mismatch: 1 where each batch is one step",
        source=replace(SOURCE, file="miles/backends/training_utils/loss_hub/math_utils.py"),
        unit="1",
        clamp="current - trainer to +-20",
        needs=("current",),
    ),
)
