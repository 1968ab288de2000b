"""slime's metrics."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from moeparity.metrics.declaration import FORWARD_KL, Metric, Reduce, Source

SLIME = Source("THUDM/slime", "slime/backends/megatron_utils/loss.py", "624b824a8")
MIS = replace(SLIME, file="examples/train_infer_mismatch_helper/mis.py")
_nats = partial(Metric, source=SLIME)
_number = partial(Metric, source=SLIME, unit="1")


METRICS = (
    _nats(
        name="slime/train_rollout_logprob_abs_diff",
        reduce=Reduce("sequence mean", "abs_delta"),
        formula="mean over sequences of mean |delta|",
        estimates="the size of delta, every sequence weighing the same",
        healthy="0.010 to 0.028",
        alarm="0.1 (CI); 1e-6 (deterministic)",
        alarm_above=0.1,
    ),
    _nats(
        name="slime/train_rollout_logprob_abs_diff_per_token",
        reduce=Reduce("token mean", "abs_delta"),
        formula="mean over tokens of |delta|, with calculate_per_token_loss",
        estimates="the size of delta",
        alarm="0.1 (CI)",
        alarm_above=0.1,
    ),
    Metric(
        name="slime/mismatch_k3_kl",
        reduce=Reduce("sequence mean", "k3"),
        formula="mean over sequences of mean k3; logged as mis_k3_kl",
        estimates=FORWARD_KL,
        source=MIS,
    ),
    Metric(
        name="slime/mismatch_kl",
        reduce=Reduce("sequence mean", "k1"),
        formula="mean over sequences of mean (rollout - train); logged as mis_kl",
        estimates=FORWARD_KL,
        source=MIS,
    ),
    _number(
        name="slime/tis",
        reduce=Reduce("sequence mean", "ratio_less_1", offset=1.0),
        formula="mean over sequences of mean rho",
        estimates="E[rho]",
        healthy="1",
    ),
    _number(
        name="slime/tis_abs",
        reduce=Reduce("sequence mean", "abs_ratio_less_1"),
        formula="mean over sequences of mean |rho - 1|",
        estimates="the size of the weights' error",
    ),
    _number(
        name="slime/tis_clipfrac",
        reduce=Reduce("sequence mean", "above_threshold"),
        formula="mean over sequences of the fraction with rho > 2.0",
        estimates="tokens whose weight is cut off; those below 1 never are",
        clamp="rho to [0, 2.0]",
    ),
)
