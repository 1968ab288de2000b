"""verl's metrics. The + 1e-8 in its denominators is left out; sequences without a scored token are not counted."""

from __future__ import annotations

from moeparity.metrics.declaration import Kind, Metric, Reduce, Source

HELPER = Source("verl-project/verl", "verl/trainer/ppo/rollout_corr_helper.py", "1dda039b9")
DEBUG = Source("verl-project/verl", "verl/utils/debug/metrics.py", "1dda039b9")
_WEIGHT = "delta to +-20, weight to [0, 2.0] (rollout_is_threshold's default)"
_EXAMPLE = "verl example, off-policy: far too loose for parity"


def _one(
    name: str,
    kind: Kind,
    of: str,
    formula: str,
    estimates: str,
    *,
    offset: float = 0.0,
    unit: str = "nats",
    clamp: str = "none",
    alarm: str = "",
    above: float | None = None,
    below: float | None = None,
    healthy: str = "",
    source: Source = HELPER,
) -> Metric:
    return Metric(
        name=f"verl/{name}",
        reduce=Reduce(kind, of, offset),
        formula=formula,
        estimates=estimates,
        source=source,
        unit=unit,
        clamp=clamp,
        alarm=alarm,
        alarm_above=above,
        alarm_below=below,
        healthy=healthy,
    )


_DIVERGENCE = (
    _one(
        "kl", "token mean", "k1", "mean over tokens of rollout - train", "KL(sampler || trainer), can be negative",
        alarm=f"|kl| > 0.1 ({_EXAMPLE})", above=0.1, below=-0.1,
    ),
    _one("k3_kl", "token mean", "k3", "mean over tokens of exp(delta) - delta - 1", "KL(sampler || trainer)"),
    _one(
        "k3_kl_penalty", "token mean", "k3_clamped", "kl_penalty's k3, mean over tokens",
        "KL(sampler || trainer), cut off", clamp="delta to +-20, result to +-10",
        source=Source("verl-project/verl", "verl/trainer/ppo/core_algos.py", "1dda039b9"),
    ),
    _one(
        "chi2_token", "token mean", "chi2_clamped", "mean over tokens of rho^2, less 1",
        "chi2(trainer || sampler) per token; called non-negative there, its estimate is not", unit="1",
        clamp="delta to +-20", alarm=f"> 1 ({_EXAMPLE})", above=1.0,
    ),
    _one(
        "chi2_seq", "mean over sequences", "chi2_seq", "mean over sequences of exp(2 sum delta), less 1",
        "chi2(trainer || sampler) of whole sequences; can be negative", unit="1", clamp="sum delta to +-20",
    ),
)  # fmt: skip

_PERPLEXITY = (
    _one(
        "training_ppl", "mean over sequences", "trainer_ppl", "mean over sequences of exp(-mean log P_trainer)",
        "the trainer's perplexity on the sampler's tokens", unit="1",
    ),
    _one(
        "rollout_ppl", "mean over sequences", "rollout_ppl", "mean over sequences of exp(-mean log P_sampler)",
        "the sampler's perplexity on its own tokens", unit="1",
    ),
    _one(
        "log_ppl_diff", "mean over sequences", "log_ppl_diff", "mean over sequences of mean rollout - mean train",
        "KL(sampler || trainer) per token, every sequence weighing the same",
    ),
    _one(
        "log_ppl_abs_diff", "mean over sequences", "log_ppl_abs_diff", "mean over sequences of |mean delta|",
        "the size of a sequence's drift",
    ),
    _one("log_ppl_diff_max", "sequence max", "log_ppl_diff", "the greatest of log_ppl_diff", "the worst sequence"),
    _one("log_ppl_diff_min", "sequence min", "log_ppl_diff", "the least of log_ppl_diff", "the other end"),
    _one(
        "ppl_ratio", "mean over sequences", "ppl_ratio_less_1", "mean over sequences of exp(log_ppl_diff)",
        "the trainer's perplexity over the sampler's", offset=1.0, unit="1", healthy="1.0045 (PR 7242)",
    ),
)  # fmt: skip

_WEIGHTS = (
    _one(
        "rollout_is_mean", "token mean", "truncated", "mean over tokens of the truncated weight",
        "the weight the loss is multiplied by", unit="1", clamp=_WEIGHT,
        alarm=f"outside [0.5, 2] ({_EXAMPLE})", above=2.0, below=0.5,
    ),
    _one(
        "rollout_is_std", "of totals", "truncated_std", "sqrt(max(0, mean w^2 - (mean w)^2)) of truncated weights",
        "spread of the truncated weights", unit="1", clamp=_WEIGHT, alarm=f"> 1 ({_EXAMPLE})", above=1.0,
    ),
    _one("rollout_is_min", "token min", "truncated", "the least truncated weight", "", unit="1", clamp=_WEIGHT),
    _one("rollout_is_max", "token max", "truncated", "the greatest truncated weight", "", unit="1", clamp=_WEIGHT),
    _one(
        "rollout_is_eff_sample_size", "of totals", "truncated_ess", "1 / mean((w / mean w)^2) of truncated weights w",
        "a share in (0, 1], on truncated weights: blind to what was cut off", unit="1", clamp=_WEIGHT,
        alarm=f"< 0.3 ({_EXAMPLE})", below=0.3,
    ),
    _one(
        "rollout_is_ratio_fraction_high", "token mean", "above_threshold", "share of tokens with rho > 2.0",
        "tokens whose weight is cut off", unit="1",
    ),
    _one(
        "rollout_is_ratio_fraction_low", "token mean", "below_threshold", "share of tokens with rho < 1 / 2.0",
        "tokens that weigh little", unit="1",
    ),
    _one(
        "rollout_is_seq_mean", "mean over sequences", "truncated_mean",
        "mean over sequences of the mean truncated token weight", "of token weights, not of their products", unit="1",
        clamp=_WEIGHT,
    ),
    _one(
        "rollout_is_seq_max", "sequence max", "truncated_mean", "the greatest mean truncated weight of a sequence", "",
        unit="1", clamp=_WEIGHT,
    ),
    _one(
        "rollout_is_seq_min", "sequence min", "truncated_mean", "the least mean truncated weight of a sequence", "",
        unit="1", clamp=_WEIGHT,
    ),
)  # fmt: skip

_PROBABILITIES = (
    _one(
        "rollout_probs_diff_mean", "token mean", "abs_dp", "mean over tokens of |exp(train) - exp(rollout)|",
        "a difference of probabilities, though its docstring says log-probabilities", unit="1", source=DEBUG,
        healthy="< 0.005 (FAQ)", alarm="> 0.01: engine problem (FAQ)", above=0.01,
    ),
    _one(
        "rollout_probs_diff_max", "token max", "abs_dp", "the greatest |exp(train) - exp(rollout)|", "", unit="1",
        source=DEBUG,
    ),
    _one(
        "rollout_probs_diff_std", "of totals", "abs_dp_std", "standard deviation (n - 1) of it over tokens", "",
        unit="1", source=DEBUG,
    ),
    _one(
        "rollout_actor_probs_pearson_corr", "of totals", "pearson", "Pearson correlation of the two probabilities",
        "agreement in probability space", unit="1", source=DEBUG, healthy="0.997 fixed, 0.992 (PR 7242)",
        alarm="0.987 held reward back (MiniMax)", below=0.987,
    ),
)  # fmt: skip

METRICS = (*_DIVERGENCE, *_PERPLEXITY, *_WEIGHTS, *_PROBABILITIES)
