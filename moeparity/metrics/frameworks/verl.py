"""verl's metrics. The + 1e-8 in its denominators is left out; sequences without a scored token are not counted."""

from __future__ import annotations

from functools import partial

from moeparity.metrics.declaration import FORWARD_KL, Metric, Reduce, Source

HELPER = Source("verl-project/verl", "verl/trainer/ppo/rollout_corr_helper.py", "1dda039b9")
DEBUG = Source("verl-project/verl", "verl/utils/debug/metrics.py", "1dda039b9")
_nats = partial(Metric, source=HELPER)
_number = partial(Metric, source=HELPER, unit="1")
_WEIGHT = "delta to +-20, weight to [0, 2.0] (rollout_is_threshold's default)"
_EXAMPLE = "verl example, off-policy: far too loose for parity"


METRICS = (
    _nats(
        name="verl/kl",
        reduce=Reduce("token mean", "k1"),
        formula="mean over tokens of rollout - train",
        estimates=f"{FORWARD_KL}, can be negative",
        alarm=f"|kl| > 0.1 ({_EXAMPLE})",
        alarm_above=0.1,
        alarm_below=-0.1,
    ),
    _nats(
        name="verl/k3_kl",
        reduce=Reduce("token mean", "k3"),
        formula="mean over tokens of exp(delta) - delta - 1",
        estimates=FORWARD_KL,
    ),
    Metric(
        name="verl/k3_kl_penalty",
        reduce=Reduce("token mean", "k3_clamped"),
        formula="kl_penalty's k3, mean over tokens",
        estimates=f"{FORWARD_KL}, cut off",
        source=Source("verl-project/verl", "verl/trainer/ppo/core_algos.py", "1dda039b9"),
        clamp="delta to +-20, result to +-10",
    ),
    _number(
        name="verl/chi2_token",
        reduce=Reduce("token mean", "chi2_clamped"),
        formula="mean over tokens of rho^2, less 1",
        estimates="chi2(trainer || sampler) per token; called non-negative there, its estimate is not",
        clamp="delta to +-20",
        alarm=f"> 1 ({_EXAMPLE})",
        alarm_above=1.0,
    ),
    _number(
        name="verl/chi2_seq",
        reduce=Reduce("mean over sequences", "chi2_seq"),
        formula="mean over sequences of exp(2 sum delta), less 1",
        estimates="chi2(trainer || sampler) of whole sequences; can be negative",
        clamp="sum delta to +-20",
    ),
    _number(
        name="verl/training_ppl",
        reduce=Reduce("mean over sequences", "trainer_ppl"),
        formula="mean over sequences of exp(-mean log P_trainer)",
        estimates="the trainer's perplexity on the sampler's tokens",
    ),
    _number(
        name="verl/rollout_ppl",
        reduce=Reduce("mean over sequences", "rollout_ppl"),
        formula="mean over sequences of exp(-mean log P_sampler)",
        estimates="the sampler's perplexity on its own tokens",
    ),
    _nats(
        name="verl/log_ppl_diff",
        reduce=Reduce("mean over sequences", "log_ppl_diff"),
        formula="mean over sequences of mean rollout - mean train",
        estimates=f"{FORWARD_KL} per token, every sequence weighing the same",
    ),
    _nats(
        name="verl/log_ppl_abs_diff",
        reduce=Reduce("mean over sequences", "log_ppl_abs_diff"),
        formula="mean over sequences of |mean delta|",
        estimates="the size of a sequence's drift",
    ),
    _nats(
        name="verl/log_ppl_diff_max",
        reduce=Reduce("sequence max", "log_ppl_diff"),
        formula="the greatest of log_ppl_diff",
        estimates="the worst sequence",
    ),
    _nats(
        name="verl/log_ppl_diff_min",
        reduce=Reduce("sequence min", "log_ppl_diff"),
        formula="the least of log_ppl_diff",
        estimates="the other end",
    ),
    _number(
        name="verl/ppl_ratio",
        reduce=Reduce("mean over sequences", "ppl_ratio_less_1", offset=1.0),
        formula="mean over sequences of exp(log_ppl_diff)",
        estimates="the trainer's perplexity over the sampler's",
        healthy="1.0045 (PR 7242)",
    ),
    _number(
        name="verl/rollout_is_mean",
        reduce=Reduce("token mean", "truncated"),
        formula="mean over tokens of the truncated weight",
        estimates="the weight the loss is multiplied by",
        clamp=_WEIGHT,
        alarm=f"outside [0.5, 2] ({_EXAMPLE})",
        alarm_above=2.0,
        alarm_below=0.5,
    ),
    _number(
        name="verl/rollout_is_std",
        reduce=Reduce("of totals", "truncated_std"),
        formula="sqrt(max(0, mean w^2 - (mean w)^2)) of truncated weights",
        estimates="spread of the truncated weights",
        clamp=_WEIGHT,
        alarm=f"> 1 ({_EXAMPLE})",
        alarm_above=1.0,
    ),
    _number(
        name="verl/rollout_is_min",
        reduce=Reduce("token min", "truncated"),
        formula="the least truncated weight",
        estimates="",
        clamp=_WEIGHT,
    ),
    _number(
        name="verl/rollout_is_max",
        reduce=Reduce("token max", "truncated"),
        formula="the greatest truncated weight",
        estimates="",
        clamp=_WEIGHT,
    ),
    _number(
        name="verl/rollout_is_eff_sample_size",
        reduce=Reduce("of totals", "truncated_ess"),
        formula="1 / mean((w / mean w)^2) of truncated weights w",
        estimates="a fraction in (0, 1], on truncated weights: blind to what was cut off",
        clamp=_WEIGHT,
        alarm=f"< 0.3 ({_EXAMPLE})",
        alarm_below=0.3,
    ),
    _number(
        name="verl/rollout_is_ratio_fraction_high",
        reduce=Reduce("token mean", "above_threshold"),
        formula="fraction of tokens with rho > 2.0",
        estimates="tokens whose weight is cut off",
    ),
    _number(
        name="verl/rollout_is_ratio_fraction_low",
        reduce=Reduce("token mean", "below_threshold"),
        formula="fraction of tokens with rho < 1 / 2.0",
        estimates="tokens that weigh little",
    ),
    _number(
        name="verl/rollout_is_seq_mean",
        reduce=Reduce("mean over sequences", "truncated_mean"),
        formula="mean over sequences of the mean truncated token weight",
        estimates="of token weights, not of their products",
        clamp=_WEIGHT,
    ),
    _number(
        name="verl/rollout_is_seq_max",
        reduce=Reduce("sequence max", "truncated_mean"),
        formula="the greatest mean truncated weight of a sequence",
        estimates="",
        clamp=_WEIGHT,
    ),
    _number(
        name="verl/rollout_is_seq_min",
        reduce=Reduce("sequence min", "truncated_mean"),
        formula="the least mean truncated weight of a sequence",
        estimates="",
        clamp=_WEIGHT,
    ),
    Metric(
        name="verl/rollout_probs_diff_mean",
        reduce=Reduce("token mean", "abs_dp"),
        formula="mean over tokens of |exp(train) - exp(rollout)|",
        estimates="a difference of probabilities, though its docstring says log-probabilities",
        source=DEBUG,
        unit="1",
        healthy="< 0.005 (FAQ)",
        alarm="> 0.01: engine problem (FAQ)",
        alarm_above=0.01,
    ),
    Metric(
        name="verl/rollout_probs_diff_max",
        reduce=Reduce("token max", "abs_dp"),
        formula="the greatest |exp(train) - exp(rollout)|",
        estimates="",
        source=DEBUG,
        unit="1",
    ),
    Metric(
        name="verl/rollout_probs_diff_std",
        reduce=Reduce("of totals", "abs_dp_std"),
        formula="standard deviation (n - 1) of it over tokens",
        estimates="",
        source=DEBUG,
        unit="1",
    ),
    Metric(
        name="verl/rollout_actor_probs_pearson_corr",
        reduce=Reduce("of totals", "pearson"),
        formula="Pearson correlation of the two probabilities",
        estimates="agreement in probability space",
        source=DEBUG,
        unit="1",
        healthy="0.997 fixed, 0.992 (PR 7242)",
        alarm="0.987 held reward back (MiniMax)",
        alarm_below=0.987,
    ),
)
