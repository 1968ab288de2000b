"""Metrics that belong to no framework: estimators of KL, sizes of delta, and importance weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from moeparity.metrics.declaration import FORWARD_KL, Kind, Metric, Reduce, Source

SCHULMAN = Source("J. Schulman", "Approximating KL divergence, 2020", "", "secondary")
SLIME = Source("THUDM/slime", "slime/backends/megatron_utils/loss.py", "624b824a8")
VERL = Source("verl-project/verl", "verl/utils/debug/metrics.py", "1dda039b9")
R3 = Source("R3 paper", "arXiv:2510.11370", "", "secondary")
OURS = Source("moeparity", "moeparity/metrics/quantities.py", "", "inferred")
_nats = partial(Metric, source=OURS)
_number = partial(Metric, source=OURS, unit="1")


_ESTIMATORS = {
    "k1": ("-delta", f"{FORWARD_KL}, unbiased, can be negative"),
    "k2": ("delta^2 / 2", f"{FORWARD_KL} for small delta; biased, low variance"),
    "k3": ("exp(delta) - 1 - delta", f"{FORWARD_KL}, unbiased if and only if E[rho] = 1; never negative"),
    "k3_swapped": (
        "exp(-delta) - 1 + delta",
        "chi2(sampler || trainer) - KL(sampler || trainer), not KL(trainer || sampler): tokens are the sampler's",
    ),
    "k3_clamped": (
        "k3 with delta clamped to +-20 and the result to +-10",
        f"{FORWARD_KL}, cut off: the twin that a trainer with clamps would show",
    ),
}
"""The formula of each estimator of KL, and what it estimates."""


def _estimators() -> Iterator[Metric]:
    """Each estimator as a mean over tokens and as one over sequences."""
    means: tuple[tuple[Kind, str, str], ...] = (
        ("token mean", "", "tokens"),
        ("sequence mean", "_sequence", "sequence means"),
    )
    for name, (formula, estimates) in _ESTIMATORS.items():
        for kind, ending, over in means:
            yield Metric(
                name=name + ending,
                reduce=Reduce(kind, name),
                formula=f"mean over {over} of {formula}",
                estimates=estimates,
                source=OURS if name in {"k3_swapped", "k3_clamped"} else SCHULMAN,
                clamp="delta to +-20, result to +-10" if name == "k3_clamped" else "none",
            )


def _published(metric: Metric) -> Metric:
    """The metric with published ranges, which exist for k3 per token only."""
    if metric.name != "k3":
        return metric
    return replace(
        metric,
        healthy="MoE bf16 3e-4 to 1.5e-3 (R3, prime-rl), dense bf16 1e-5 to 1e-3 (miles), "
        "fp8 rollout 1.4e-3 to 5e-3 (NeMo-RL)",
        alarm="1e-3 (Fireworks, NeMo-RL docs); 0.015 (prime-rl, to merge a model)",
        alarm_above=1e-3,
    )


_QUANTILES = {"median": 0.5, "p95": 0.95, "p99": 0.99, "p99_9": 0.999}


METRICS = (
    *map(_published, _estimators()),
    Metric(
        name="mean_abs_delta",
        reduce=Reduce("token mean", "abs_delta"),
        formula="mean over tokens of |delta|",
        estimates="the size of delta, robust against rare large ones",
        source=SLIME,
        healthy="0.010 to 0.028 on MoE bf16 (vime, miles, IsoExec)",
        alarm="0.1 (slime CI); 1e-3 (miles comparator); 1e-6 (slime, deterministic)",
        alarm_above=0.1,
    ),
    *(
        _nats(
            name=f"{name}_abs_delta",
            reduce=Reduce("token quantile", "abs_delta", at=at),
            formula=f"the {at:g} quantile of |delta| over tokens, within 0.25 % of itself",
            estimates="the tail of |delta|",
        )
        for name, at in _QUANTILES.items()
    ),
    _nats(
        name="max_abs_delta",
        reduce=Reduce("token max", "abs_delta"),
        formula="the greatest |delta|",
        estimates="the worst token; 0 says that all log-probabilities are equal",
    ),
    Metric(
        name="mean_abs_dp",
        reduce=Reduce("token mean", "abs_dp"),
        formula="mean over tokens of |P_trainer - P_sampler|",
        estimates="the difference in probability of the sampled token",
        source=VERL,
        unit="1",
        healthy="below 0.005 (verl FAQ)",
        alarm="0.01 (verl FAQ)",
        alarm_above=0.01,
    ),
    _number(
        name="max_abs_dp",
        reduce=Reduce("token max", "abs_dp"),
        formula="the greatest |P_trainer - P_sampler|",
        estimates="the worst token in probability",
    ),
    Metric(
        name="pearson",
        reduce=Reduce("of totals", "pearson"),
        formula="Pearson correlation over tokens of P_trainer and P_sampler",
        estimates="agreement in probability space; says little where probabilities are near 0 or 1",
        source=VERL,
        unit="1",
        healthy="0.997 (MiniMax, fp32 head); 0.992 (verl PR 7242)",
        alarm="0.987 held reward back (MiniMax)",
        alarm_below=0.987,
    ),
    _number(
        name="mean_ratio",
        reduce=Reduce("token mean", "ratio_less_1", offset=1.0),
        formula="mean over tokens of rho",
        estimates="E[rho], which is 1 if the log-probabilities are those of the sampling distribution",
        healthy="1 within its interval; else temperature, truncation, raw or processed, alignment",
    ),
    _number(
        name="chi2_token",
        reduce=Reduce("token mean", "chi2"),
        formula="mean over tokens of rho^2, less 1",
        estimates="chi2(trainer || sampler) per token; an estimate that can be negative",
        healthy="about 2 k3 for small delta",
        alarm="1 (verl example, off-policy)",
        alarm_above=1.0,
    ),
    _number(
        name="ess_fraction",
        reduce=Reduce("of totals", "ess_fraction"),
        formula="(sum rho)^2 / (n sum rho^2) over all n tokens, weights not truncated",
        estimates="the fraction of tokens that the weights leave effective",
        healthy="near 1",
        alarm="0.3 (verl example, off-policy)",
        alarm_below=0.3,
    ),
    Metric(
        name="token_mult_prob_error",
        reduce=Reduce("token mean", "mult_error_less_1", offset=1.0),
        formula="mean over tokens of exp(|delta|)",
        estimates="the mean factor between the two probabilities; a weaker gate than k3 < 1e-3",
        source=Source("NVIDIA-NeMo/RL", "nemo_rl/algorithms/loss/loss_functions.py", "7ea279abf"),
        unit="1",
        healthy="1.00 to 1.02",
        alarm="1.05 (NeMo-RL docs)",
        alarm_above=1.05,
    ),
    *(
        Metric(
            name=f"f{tau}",
            reduce=Reduce("token mean", f"beyond_{tau}"),
            formula=f"fraction of tokens with max(rho, 1/rho) > {tau}",
            estimates="the rate of extreme tokens; 0 in n tokens bounds it at about 3/n only",
            source=R3,
            unit="1",
            healthy="1e-5 to 2e-3 natively, below 1e-4 with routes replayed (R3)" if tau == 2 else "",
            alarm="0.1 at a collapse (R3)" if tau == 2 else "",
            alarm_above=0.1 if tau == 2 else None,
        )
        for tau in (2, 3, 5, 10)
    ),
    _nats(
        name="nll_sampler",
        reduce=Reduce("token mean", "neg_rollout"),
        formula="mean over tokens of -log P_sampler",
        estimates="the sampler's entropy, if its tokens were sampled from what it reports",
    ),
    Metric(
        name="entropy",
        reduce=Reduce("token mean", "entropy"),
        formula="mean over tokens of the entropy that the log gives",
        estimates="the trainer's entropy over the whole vocabulary",
        source=Source("PrimeIntellect-ai/prime-rl", "token_exports/step_*/rank_*.jsonl", "559b44772"),
        needs=("entropy",),
    ),
)
PRIMARY = (
    "k3",
    "k3_sequence",
    "k1",
    "k2",
    "k3_swapped",
    "mean_abs_delta",
    "p99_9_abs_delta",
    "max_abs_delta",
    "mean_ratio",
    "token_mult_prob_error",
    "mean_abs_dp",
    "pearson",
    "f2",
    "chi2_token",
    "ess_fraction",
)
"""The metrics with which a report opens, in order."""
