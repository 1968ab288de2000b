"""PipelineRL's metrics."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from moeparity.metrics.declaration import FORWARD_KL, Metric, Reduce, Source

LOSS = Source("ServiceNow/PipelineRL", "pipelinerl/finetune/rl/__init__.py", "58d3934")
LOOP = replace(LOSS, file="pipelinerl/finetune_loop.py")
_nats = partial(Metric, source=LOSS)
_number = partial(Metric, source=LOSS, unit="1")


METRICS = (
    _nats(
        name="pipelinerl/kl_new_old",
        reduce=Reduce("sequence mean", "k3"),
        formula="mean over sequences of mean k3",
        estimates=FORWARD_KL,
    ),
    _number(
        name="pipelinerl/ratio_new_old",
        reduce=Reduce("sequence mean", "ratio_less_1", offset=1.0),
        formula="mean over sequences of mean rho; in reinforce mode see ratio_new_old_reinforce",
        estimates="E[rho]",
        healthy="1",
    ),
    _number(
        name="pipelinerl/ratio_new_old_reinforce",
        reduce=Reduce("sequence mean", "ratio_less_1_reinforce", offset=1.0),
        formula="mean over sequences of mean min(rho, 1 + 0.02): in reinforce mode it is clamped before it is logged",
        estimates="E[rho] with its upper tail cut off",
        clamp="rho to 1.02 (default epsilon)",
    ),
    _nats(
        name="pipelinerl/mean_abs_log_ratio_new_old",
        reduce=Reduce("sequence mean", "abs_delta"),
        formula="mean over sequences of mean |delta|",
        estimates="the size of delta",
    ),
    _number(
        name="pipelinerl/clamp_log_ratio_new_old_indicator_ppo",
        reduce=Reduce("sequence mean", "ratio_clamped_ppo"),
        formula="mean over sequences of the fraction of tokens with rho outside 1 +- 0.02 (ppo)",
        estimates="the clip rate",
    ),
    _number(
        name="pipelinerl/clamp_log_ratio_new_old_indicator_reinforce",
        reduce=Reduce("sequence mean", "ratio_clamped_reinforce"),
        formula="mean over sequences of the fraction of tokens with rho > 1.02 (reinforce)",
        estimates="the clip rate",
    ),
    Metric(
        name="pipelinerl/ess",
        reduce=Reduce("of totals", "ess_fraction"),
        formula="(sum rho)^2 / (n sum rho^2) over all n tokens (ppo, gspo); in reinforce mode see ess_reinforce",
        estimates="the fraction of tokens that the weights leave effective",
        source=LOOP,
        unit="1",
    ),
    Metric(
        name="pipelinerl/ess_reinforce",
        reduce=Reduce("of totals", "reinforce_ess"),
        formula="(sum w)^2 / (n sum w^2), w = min(rho, 1 + 0.02): in reinforce mode rho is clamped before it is summed",
        estimates="the same with the upper tail cut off",
        source=LOOP,
        unit="1",
        clamp="rho to 1.02 (default epsilon)",
    ),
)
