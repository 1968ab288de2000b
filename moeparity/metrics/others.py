"""The metrics of slime, miles, TRL, OpenRLHF, AReaL, PipelineRL, tinker and prime-rl."""

from __future__ import annotations

from dataclasses import replace

from moeparity.metrics.declaration import Kind, Metric, Reduce, Source

SLIME = Source("THUDM/slime", "slime/backends/megatron_utils/loss.py", "624b824a8")
MIS = replace(SLIME, file="examples/train_infer_mismatch_helper/mis.py")
MILES = Source("radixark/miles", "miles/backends/training_utils/loss_hub/losses.py", "31f1ca961")
TRL = Source("huggingface/trl", "trl/trainer/grpo_trainer.py", "f2cd57710")
OPENRLHF = Source("OpenRLHF/OpenRLHF", "openrlhf/models/loss.py", "3c3be623")
AREAL = Source("inclusionAI/AReaL", "areal/utils/functional/functional.py", "4aef98d8d")
PIPELINE = Source("ServiceNow/PipelineRL", "pipelinerl/finetune/rl/__init__.py", "58d3934")
TINKER = Source("thinking-machines-lab/tinker-cookbook", "tinker_cookbook/rl/metrics.py", "9dfcc3a2")
PRIME = Source("PrimeIntellect-ai/prime-rl", "src/prime_rl/trainer/rl/loss.py", "559b44772")
_FORWARD = "KL(sampler || trainer)"


def _one(
    name: str,
    kind: Kind,
    of: str,
    formula: str,
    estimates: str,
    source: Source,
    *,
    offset: float = 0.0,
    unit: str = "nats",
    clamp: str = "none",
    not_finite: str = "kept: an infinite token makes it infinite",
    needs: tuple[str, ...] = (),
    healthy: str = "",
    alarm: str = "",
    above: float | None = None,
) -> Metric:
    return Metric(
        name=name,
        reduce=Reduce(kind, of, offset),
        formula=formula,
        estimates=estimates,
        source=source,
        unit=unit,
        clamp=clamp,
        not_finite=not_finite,
        needs=needs,
        healthy=healthy,
        alarm=alarm,
        alarm_above=above,
    )


_SLIME = (
    _one(
        "slime/train_rollout_logprob_abs_diff", "sequence mean", "abs_delta", "mean over sequences of mean |delta|",
        "the size of delta, every sequence weighing the same", SLIME, healthy="0.010 to 0.028",
        alarm="0.1 (CI); 1e-6 (deterministic)", above=0.1,
    ),
    _one(
        "slime/train_rollout_logprob_abs_diff_per_token", "token mean", "abs_delta",
        "mean over tokens of |delta|, with calculate_per_token_loss", "the size of delta", SLIME, alarm="0.1 (CI)",
        above=0.1,
    ),
    _one("slime/mismatch_k3_kl", "sequence mean", "k3", "mean over sequences of mean k3; logged as mis_k3_kl",
         _FORWARD, MIS),
    _one("slime/mismatch_kl", "sequence mean", "k1", "mean over sequences of mean (rollout - train); logged as mis_kl",
         _FORWARD, MIS),
    _one("slime/tis", "sequence mean", "ratio_less_1", "mean over sequences of mean rho", "E[rho]", SLIME,
         offset=1.0, unit="1", healthy="1"),
    _one("slime/tis_abs", "sequence mean", "abs_ratio_less_1", "mean over sequences of mean |rho - 1|",
         "the size of the weights' error", SLIME, unit="1"),
    _one("slime/tis_clipfrac", "sequence mean", "above_threshold", "mean over sequences of the share with rho > 2.0",
         "tokens whose weight is cut off; those below 1 never are", SLIME, unit="1", clamp="rho to [0, 2.0]"),
    _one("miles/train_rollout_logprob_abs_diff", "sequence mean", "finite_abs_delta",
         "mean over sequences of mean |delta|", "the size of delta, every sequence weighing the same", MILES,
         not_finite="an infinite |delta| counts as 0", healthy="0.010 to 0.028",
         alarm="1e-3 (comparator)", above=1e-3),
    _one("miles/train_rollout_kl", "sequence mean", "k3_clamped", "mean over sequences of mean k3 (low_var_kl)",
         f"{_FORWARD}, cut off", MILES, clamp="delta to +-20, result to +-10"),
    _one("miles/ess_ratio", "mean over sequences", "kish",
         "mean over sequences of (sum w)^2 / (n sum w^2), w = exp(current - trainer)",
         "drift of the policy within a step, no mismatch: 1 where each batch is one step",
         replace(MILES, file="miles/backends/training_utils/loss_hub/math_utils.py"), unit="1",
         clamp="current - trainer to +-20", needs=("current",)),
)  # fmt: skip

_TRL = (
    _one("trl/sampling_logp_difference/mean", "token mean", "abs_delta",
         "mean over tokens of |old - sampling| (there the mean of the ranks' means)", "the size of delta", TRL),
    _one("trl/sampling_logp_difference/max", "token max", "abs_delta", "the greatest |old - sampling|", "", TRL),
    *(
        _one(f"trl/importance_sampling_ratio/{name}", kind, "sequence_mask",  # type: ignore[arg-type]
             f"the {name} over sequences of exp(sum delta), 0 where it exceeds 3.0 (mode sequence_mask, the default)",
             "the weight of a sequence; depends on its length (issues 5814, 4772)", TRL, unit="1",
             clamp="0 where above 3.0")
        for name, kind in (("min", "sequence min"), ("mean", "mean over sequences"), ("max", "sequence max"))
    ),
    _one("trl/sequence_masked", "mean over sequences", "sequence_masked",
         "share of sequences with exp(sum delta) > 3.0", "sequences that the default drops", TRL, unit="1"),
    _one("trl/importance_sampling_ratio_token_truncate/mean", "token mean", "truncated_at_3",
         "mean over tokens of min(rho, 3.0) (mode token_truncate)", "the weight of a token", TRL, unit="1",
         clamp="rho to 3.0"),
)  # fmt: skip

_OPENRLHF = (
    _one("openrlhf/vllm_kl", "token mean", "k1", "mean over tokens of rollout - old", f"{_FORWARD}, can be negative",
         OPENRLHF),
    _one("openrlhf/outside_bounds", "token mean", "icepop_outside", "share of tokens with rho outside [0.5, 5.0]; "
         "not logged there", "tokens that its default bounds act on", replace(OPENRLHF, level="inferred"), unit="1"),
)  # fmt: skip

_AREAL = (
    _one("areal/behave_approx_kl", "token mean", "delta", "mean over tokens of prox - old = delta",
         "minus KL(sampler || trainer): the opposite sign of everyone else's", AREAL),
    _one("areal/kl_k3", "token mean", "k3_swapped", "mean over tokens of exp(-delta) - 1 + delta",
         "chi2(sampler || trainer) - KL(sampler || trainer): the swapped form, as its rejection uses it",
         replace(AREAL, file="areal/utils/data.py")),
)  # fmt: skip

_LOOP = replace(PIPELINE, file="pipelinerl/finetune_loop.py")
_PIPELINE = (
    _one("pipelinerl/kl_new_old", "sequence mean", "k3", "mean over sequences of mean k3", _FORWARD, PIPELINE),
    _one("pipelinerl/ratio_new_old", "sequence mean", "ratio_less_1",
         "mean over sequences of mean rho; in reinforce mode see ratio_new_old_reinforce", "E[rho]", PIPELINE,
         offset=1.0, unit="1", healthy="1"),
    _one("pipelinerl/ratio_new_old_reinforce", "sequence mean", "ratio_less_1_reinforce",
         "mean over sequences of mean min(rho, 1 + 0.02): in reinforce mode it is clamped before it is logged",
         "E[rho] with its upper tail cut off", PIPELINE, offset=1.0, unit="1", clamp="rho to 1.02 (default epsilon)"),
    _one("pipelinerl/mean_abs_log_ratio_new_old", "sequence mean", "abs_delta", "mean over sequences of mean |delta|",
         "the size of delta", PIPELINE),
    _one("pipelinerl/clamp_log_ratio_new_old_indicator_ppo", "sequence mean", "ratio_clamped_ppo",
         "mean over sequences of the share of tokens with rho outside 1 +- 0.02 (ppo)", "the clip rate", PIPELINE,
         unit="1"),
    _one("pipelinerl/clamp_log_ratio_new_old_indicator_reinforce", "sequence mean", "ratio_clamped_reinforce",
         "mean over sequences of the share of tokens with rho > 1.02 (reinforce)", "the clip rate", PIPELINE,
         unit="1"),
    _one("pipelinerl/ess", "of totals", "ess_fraction",
         "(sum rho)^2 / (n sum rho^2) over all n tokens (ppo, gspo); in reinforce mode see ess_reinforce",
         "the share of tokens that the weights leave effective", _LOOP, unit="1"),
    _one("pipelinerl/ess_reinforce", "of totals", "reinforce_ess",
         "(sum w)^2 / (n sum w^2), w = min(rho, 1 + 0.02): in reinforce mode rho is clamped before it is summed",
         "the same with the upper tail cut off", _LOOP, unit="1", clamp="rho to 1.02 (default epsilon)"),
)  # fmt: skip

_TINKER = (
    _one("tinker/kl_sample_train_v1", "token mean", "k1", "mean over tokens of sampler - trainer",
         f"{_FORWARD}, can be negative", TINKER, healthy="< 0.01"),
    _one("tinker/kl_sample_train_v2", "token mean", "k2", "half the mean over tokens of delta^2",
         f"{_FORWARD} for small delta", TINKER, healthy="< 0.01"),
    _one("tinker/entropy", "token mean", "neg_rollout", "-mean over tokens of log P_sampler", "the sampler's entropy",
         TINKER),
)  # fmt: skip

_PRIME = (
    _one("prime-rl/mismatch_kl/mean", "token mean", "k3", "mean over tokens of exp(delta) - delta - 1", _FORWARD,
         PRIME, healthy="<= 0.0004 replayed, <= 0.0011 not (DSV4-Flash, 20 steps)",
         alarm="0.015 in all of 20 steps (to merge a model)", above=0.015),
    _one("prime-rl/mismatch_kl/std", "of totals", "k3_std", "standard deviation (n - 1) of it over tokens",
         "the spread of k3", PRIME),
    _one("prime-rl/mismatch_kl/max", "token max", "k3", "the greatest k3", "the worst token", PRIME),
    _one("prime-rl/kl_ent_ratio", "of totals", "kl_ent_ratio", "mean k3 / mean entropy",
         "the mismatch beside the policy's own entropy", PRIME, unit="1", needs=("entropy",)),
    _one("prime-rl/is_masked", "sequence mean", "dppo_masked",
         "mean over sequences of the share of tokens with P_trainer - P_sampler > 0.2 at advantages > 0, or < -0.2 at "
         "others",
         "tokens that DPPO masks", PRIME, unit="1", needs=("advantages",)),
    _one("prime-rl/probs_moved", "token mean", "dp_beyond", "share of tokens with |P_trainer - P_sampler| > 0.2",
         "an upper bound on what DPPO masks, where the log has no advantages", PRIME, unit="1"),
)  # fmt: skip

METRICS = (*_SLIME, *_TRL, *_OPENRLHF, *_AREAL, *_PIPELINE, *_TINKER, *_PRIME)
