"""NeMo-RL's metrics (generation is the sampler, prev the trainer before the update)."""

from __future__ import annotations

from functools import partial

from moeparity.metrics.declaration import FORWARD_KL, Metric, Reduce, Source

LOSS = Source("NVIDIA-NeMo/RL", "nemo_rl/algorithms/loss/loss_functions.py", "7ea279abf")
GRPO = Source("NVIDIA-NeMo/RL", "nemo_rl/algorithms/grpo.py", "7ea279abf")
_nats = partial(Metric, source=LOSS)
_number = partial(Metric, source=LOSS, unit="1")
_ZEROED = "rho that is NaN or infinite counts as 0; it overflows in fp32 above delta 88.7, and is taken as there"


METRICS = (
    _number(
        name="nemo-rl/token_mult_prob_error",
        reduce=Reduce("token mean", "mult_error_less_1", offset=1.0),
        formula="mean over tokens (token_mask[:, 1:] x sample_mask) of exp(|gen - prev|)",
        estimates="the mean factor between the two probabilities",
        healthy="1.0 is perfect; 1.00 to 1.02 usual",
        alarm="1.05 (docs, equal precision)",
        alarm_above=1.05,
    ),
    _nats(
        name="nemo-rl/gen_kl_error",
        reduce=Reduce("token mean", "k3"),
        formula="mean over tokens of exp(prev - gen) - (prev - gen) - 1; k1 or k2 if reference_policy_kl_type says so",
        estimates=FORWARD_KL,
        healthy="about 1e-3",
        alarm="1e-3 (docs)",
        alarm_above=1e-3,
    ),
    _nats(
        name="nemo-rl/policy_kl_error",
        reduce=Reduce("token mean", "k3_swapped"),
        formula="mean over tokens of exp(gen - prev) - (gen - prev) - 1",
        estimates="chi2(sampler || trainer) - KL(sampler || trainer); called KL(trainer || sampler) there, which it is "
        "not: the tokens are the sampler's",
        healthy="near 0",
        alarm="spikes above 1e-3 (docs)",
        alarm_above=1e-3,
    ),
    _nats(
        name="nemo-rl/js_divergence_error",
        reduce=Reduce("token mean", "js_surrogate"),
        formula="log m = log(exp(prev)/2 + exp(gen)/2); mean over tokens of half k3(prev - m) and half k3(gen - m), "
        "with k3(x) = exp(x) - x - 1",
        estimates="a surrogate on sampled tokens, not the Jensen-Shannon divergence of the distributions",
        healthy="near 0",
        alarm="spikes above 1e-3 (docs)",
        alarm_above=1e-3,
    ),
    _number(
        name="nemo-rl/sampling_importance_ratio",
        reduce=Reduce("token mean", "zeroed_ratio"),
        formula="mean over tokens of exp(prev - gen)",
        estimates="bias, not variance",
        not_finite=_ZEROED,
        healthy="hovers near 1",
    ),
    _number(
        name="nemo-rl/sampling_importance_ratio_sequence",
        reduce=Reduce("mean over sequences", "sequence_ratio_zeroed"),
        formula="mean over sequences of exp(sum of prev - gen), with sequence_level_importance_ratios",
        estimates="bias of whole sequences; depends on their length",
        not_finite=_ZEROED,
        healthy="hovers near 1",
    ),
    _nats(
        name="nemo-rl/approx_entropy",
        reduce=Reduce("token mean", "approx_entropy"),
        formula="-mean over tokens of exp(curr - gen) x curr",
        estimates="the entropy of the policy being updated",
        needs=("current",),
    ),
    _number(
        name="nemo-rl/is_oob_ratio_icepop",
        reduce=Reduce("token mean", "icepop_outside"),
        formula="fraction of tokens with rho outside [0.5, 5], the reference bounds of icepop",
        estimates="tokens that icepop would drop",
    ),
    _number(
        name="nemo-rl/is_oob_ratio_seq_mask_tis",
        reduce=Reduce("mean over sequences", "geometric_outside"),
        formula="fraction of sequences with exp(mean delta) outside [0.999, 1.002], the reference bounds of "
        "seq-mask-tis",
        estimates="sequences that seq-mask-tis would drop",
        not_finite="an infinite delta counts as 0",
    ),
    Metric(
        name="nemo-rl/max_seq_mult_prob_error",
        reduce=Reduce("sequence max", "mult_error"),
        formula="the greatest of the sequences' own token_mult_prob_error",
        estimates="the worst sequence",
        source=GRPO,
        unit="1",
        alarm="2 (Nemotron recipes: seq_logprob_error_threshold)",
        alarm_above=2.0,
    ),
    Metric(
        name="nemo-rl/masked_by_logprob_error",
        reduce=Reduce("mean over sequences", "mult_error_above_2"),
        formula="fraction of sequences whose own token_mult_prob_error exceeds 2",
        estimates="sequences that seq_logprob_error_threshold = 2 would mask",
        source=GRPO,
        unit="1",
    ),
)
