"""Every declared metric against the trainers' own formulas, written out once more on padded batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from moeparity.metrics.chunk import Chunk
from moeparity.metrics.registry import METRICS
from tests.metrics.made import chunk, estimates, noisy, padded

GIVEN = noisy([7, 1, 40, 23, 12, 5], 0.6)
"""Large noise: clamps, caps and thresholds act."""
ROLLOUT, TRAINER, MASK = padded(GIVEN)
DELTA = TRAINER - ROLLOUT
D = GIVEN.delta


def column(name: str) -> Tensor:
    return GIVEN.values[name]


def masked(values: Tensor, axis: int | None = None) -> Tensor:
    """verl's masked_mean without its 1e-8."""
    mask = torch.where(MASK, values, 0.0)
    return mask.sum() / MASK.sum() if axis is None else mask.sum(axis) / MASK.sum(axis)


def k3(x: Tensor) -> Tensor:
    return torch.exp(x) - x - 1


def common() -> dict[str, float]:
    p, q = np.exp(GIVEN.trainer.numpy()), np.exp(GIVEN.rollout.numpy())
    magnitude = D.abs().numpy()
    rho = torch.exp(D)
    values: dict[str, Any] = {
        "mean_abs_delta": magnitude.mean(),
        "bt_loss": D.numpy().mean(),
        "max_abs_delta": magnitude.max(),
        "mean_abs_dp": np.abs(p - q).mean(),
        "max_abs_dp": np.abs(p - q).max(),
        "pearson": stats.pearsonr(p, q).statistic,
        "mean_ratio": rho.mean(),
        "chi2_token": (rho**2).mean() - 1,
        "ess_fraction": rho.sum() ** 2 / (rho**2).sum() / len(rho),
        "token_mult_prob_error": torch.exp(D.abs()).mean(),
        "nll_sampler": -GIVEN.rollout.mean(),
        "entropy": column("entropy").mean(),
    }
    estimators: Mapping[str, Callable[[Tensor], Tensor]] = {
        "k1": lambda x: -x,
        "k2": lambda x: x**2 / 2,
        "k3": k3,
        "k3_swapped": lambda x: k3(-x),
        "k3_clamped": lambda x: k3(x.clamp(-20, 20)).clamp(-10, 10),
    }
    for name, formula in estimators.items():
        values |= {name: masked(formula(DELTA)), f"{name}_sequence": masked(formula(DELTA), -1).mean()}
    for tau in (2, 3, 5, 10):
        values[f"f{tau}"] = (torch.maximum(rho, 1 / rho) > tau).double().mean()
    return {name: float(value) for name, value in values.items()}


def nemo_rl() -> dict[str, Tensor]:
    prev, gen = TRAINER, ROLLOUT
    mixture = torch.log(0.5 * torch.exp(prev) + 0.5 * torch.exp(gen))
    weights = torch.nan_to_num(torch.exp(prev - gen), nan=0.0, posinf=0.0, neginf=0.0)
    of_sequence = torch.exp(torch.where(MASK, prev - gen, 0.0).sum(-1))
    geometric = torch.exp(masked(prev - gen, -1))
    per_sequence = masked(torch.exp((gen - prev).abs()), -1)
    ratio = torch.exp(column("current") - GIVEN.rollout)
    return {
        "token_mult_prob_error": masked(torch.exp((gen - prev).abs())),
        "gen_kl_error": masked(k3(prev - gen)),
        "policy_kl_error": masked(k3(gen - prev)),
        "js_divergence_error": masked(0.5 * k3(prev - mixture) + 0.5 * k3(gen - mixture)),
        "sampling_importance_ratio": masked(weights),
        "sampling_importance_ratio_sequence": of_sequence.mean(),
        "approx_entropy": -(ratio * column("current")).mean(),
        "is_oob_ratio_icepop": masked(((weights < 0.5) | (weights > 5)).double()),
        "is_oob_ratio_seq_mask_tis": ((geometric < 0.999) | (geometric > 1.002)).double().mean(),
        "max_seq_mult_prob_error": per_sequence.max(),
        "masked_by_logprob_error": (per_sequence > 2).double().mean(),
    }


def verl() -> dict[str, Tensor]:
    weights = torch.exp(DELTA.clamp(-20, 20)).clamp(max=2.0)
    raw = torch.exp(DELTA.clamp(-20, 20))
    mean = masked(weights)
    ppl = masked(ROLLOUT, -1) - masked(TRAINER, -1)
    total = torch.where(MASK, DELTA, 0.0).sum(-1).clamp(-20, 20)
    p, q = (torch.masked_select(side.exp(), MASK) for side in (TRAINER, ROLLOUT))
    return {
        "kl": masked(ROLLOUT - TRAINER),
        "k3_kl": masked(k3(DELTA)),
        "k3_kl_penalty": masked(k3(DELTA.clamp(-20, 20)).clamp(-10, 10)),
        "chi2_token": masked(raw.square()) - 1,
        "chi2_seq": torch.exp(2 * total).mean() - 1,
        "training_ppl": torch.exp(-masked(TRAINER, -1)).mean(),
        "rollout_ppl": torch.exp(-masked(ROLLOUT, -1)).mean(),
        "log_ppl_diff": ppl.mean(),
        "log_ppl_abs_diff": ppl.abs().mean(),
        "log_ppl_diff_max": ppl.max(),
        "log_ppl_diff_min": ppl.min(),
        "ppl_ratio": ppl.exp().mean(),
        "rollout_is_mean": mean,
        "rollout_is_std": (masked(weights.square()) - mean.square()).clamp(min=0).sqrt(),
        "rollout_is_min": weights[MASK].min(),
        "rollout_is_max": weights[MASK].max(),
        "rollout_is_eff_sample_size": 1 / masked((weights / (mean + 1e-8)).square()),
        "rollout_is_ratio_fraction_high": masked((raw > 2.0).double()),
        "rollout_is_ratio_fraction_low": masked((raw < 0.5).double()),
        "rollout_is_seq_mean": masked(weights, -1).mean(),
        "rollout_is_seq_max": masked(weights, -1).max(),
        "rollout_is_seq_min": masked(weights, -1).min(),
        "rollout_probs_diff_mean": (p - q).abs().mean(),
        "rollout_probs_diff_max": (p - q).abs().max(),
        "rollout_probs_diff_std": (p - q).abs().std(),
        "rollout_actor_probs_pearson_corr": torch.corrcoef(torch.stack([p, q]))[0, 1],
    }


def others() -> dict[str, Tensor]:
    rho = torch.exp(DELTA)
    of_sequence = torch.exp(torch.where(MASK, DELTA, 0.0).sum(-1))
    mask = of_sequence.masked_fill(of_sequence > 3.0, 0.0)
    lengths = [int(n) for n in GIVEN.counts]
    drift = torch.exp(column("current") - GIVEN.trainer).split(lengths)
    change = GIVEN.trainer.exp() - GIVEN.rollout.exp()
    dropped = torch.where(column("advantages") > 0, change > 0.2, change < -0.2).double()
    tis = rho.clamp(0, 2.0)
    clamped = rho.clamp(0, 1.02)
    return {
        "slime/train_rollout_logprob_abs_diff": masked(DELTA.abs(), -1).mean(),
        "slime/train_rollout_logprob_abs_diff_per_token": masked(DELTA.abs()),
        "slime/mismatch_k3_kl": masked(k3(DELTA), -1).mean(),
        "slime/mismatch_kl": masked(-DELTA, -1).mean(),
        "slime/tis": masked(rho, -1).mean(),
        "slime/tis_abs": masked((rho - 1).abs(), -1).mean(),
        "slime/tis_clipfrac": masked((tis != rho).double(), -1).mean(),
        "miles/train_rollout_logprob_abs_diff": masked(DELTA.abs(), -1).mean(),
        "miles/train_rollout_kl": masked(k3(DELTA.clamp(-20, 20)).clamp(-10, 10), -1).mean(),
        "miles/ess_ratio": torch.stack([w.sum() ** 2 / (len(w) * (w**2).sum()) for w in drift]).mean(),
        "trl/sampling_logp_difference/mean": DELTA[MASK].abs().mean(),
        "trl/sampling_logp_difference/max": DELTA[MASK].abs().max(),
        "trl/importance_sampling_ratio/min": mask.min(),
        "trl/importance_sampling_ratio/mean": mask.mean(),
        "trl/importance_sampling_ratio/max": mask.max(),
        "trl/sequence_masked": (of_sequence > 3.0).double().mean(),
        "trl/importance_sampling_ratio_token_truncate/mean": rho[MASK].clamp(max=3.0).mean(),
        "openrlhf/vllm_kl": masked(ROLLOUT - TRAINER),
        "openrlhf/outside_bounds": masked(((rho < 0.5) | (rho > 5.0)).double()),
        "areal/behave_approx_kl": masked(DELTA),
        "areal/kl_k3": masked(torch.exp(-DELTA) - 1 + DELTA),
        "pipelinerl/kl_new_old": masked(k3(DELTA), -1).mean(),
        "pipelinerl/ratio_new_old": masked(rho, -1).mean(),
        "pipelinerl/ratio_new_old_reinforce": masked(clamped, -1).mean(),
        "pipelinerl/mean_abs_log_ratio_new_old": masked(DELTA.abs(), -1).mean(),
        "pipelinerl/clamp_log_ratio_new_old_indicator_ppo": masked((rho.clamp(0.98, 1.02) != rho).double(), -1).mean(),
        "pipelinerl/clamp_log_ratio_new_old_indicator_reinforce": masked((clamped != rho).double(), -1).mean(),
        "pipelinerl/ess": rho[MASK].sum() ** 2 / (rho[MASK] ** 2).sum() / MASK.sum(),
        "pipelinerl/ess_reinforce": clamped[MASK].sum() ** 2 / (clamped[MASK] ** 2).sum() / MASK.sum(),
        "tinker/kl_sample_train_v1": -D.mean(),
        "tinker/kl_sample_train_v2": 0.5 * (D**2).mean(),
        "tinker/entropy": -GIVEN.rollout.mean(),
        "prime-rl/mismatch_kl/mean": k3(D).mean(),
        "prime-rl/mismatch_kl/std": k3(D).std(),
        "prime-rl/mismatch_kl/max": k3(D).max(),
        "prime-rl/kl_ent_ratio": k3(D).mean() / column("entropy").mean(),
        "prime-rl/is_masked": torch.stack([sequence.mean() for sequence in dropped.split(lengths)]).mean(),
        "prime-rl/probs_moved": (change.abs() > 0.2).double().mean(),
    }


def expected() -> dict[str, float]:
    values: dict[str, Any] = {
        **common(),
        **{f"nemo-rl/{name}": value for name, value in nemo_rl().items()},
        **{f"verl/{name}": value for name, value in verl().items()},
        **others(),
    }
    return {name: float(value) for name, value in values.items()}


EXPECTED, FOUND = expected(), estimates(GIVEN)
QUANTILES = {"median_abs_delta": 0.5, "p95_abs_delta": 0.95, "p99_abs_delta": 0.99, "p99_9_abs_delta": 0.999}


def test_every_metric_has_a_formula_here() -> None:
    assert EXPECTED.keys() | QUANTILES.keys() == METRICS.keys()


@pytest.mark.parametrize("name", EXPECTED)
def test_agrees_with_the_published_formula(name: str) -> None:
    assert FOUND[name] == pytest.approx(EXPECTED[name], rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("name", QUANTILES)
def test_quantiles_lie_within_their_error(name: str) -> None:
    exact = np.quantile(D.abs().numpy(), QUANTILES[name], method="inverted_cdf")
    assert FOUND[name] == pytest.approx(exact, rel=0.0025)


def test_chunks_and_one_piece_are_the_same() -> None:
    first, second = noisy([7, 1], 0.6, seed=1), noisy([40, 3], 0.6, seed=2)
    accumulators = chunk(*pairs(first), *pairs(second), **{
        key: [*first.values[key].tolist(), *second.values[key].tolist()] for key in first.values
    })  # fmt: skip
    assert estimates(first, second) == pytest.approx(estimates(accumulators), rel=1e-12)


def pairs(chunk_in: Chunk) -> list[tuple[list[float], list[float]]]:
    rows = [chunk_in.sequence == row for row in range(chunk_in.sequences)]
    return [(chunk_in.rollout[tokens_of].tolist(), chunk_in.trainer[tokens_of].tolist()) for tokens_of in rows]


def test_the_documented_example_of_nemo_rl() -> None:
    values = estimates(chunk(([-5.0], [-15.0])), names=["nemo-rl/gen_kl_error", "nemo-rl/policy_kl_error"])
    assert values["nemo-rl/gen_kl_error"] == pytest.approx(9.0, abs=1e-3)
    assert values["nemo-rl/policy_kl_error"] == pytest.approx(22_015, abs=1)


def test_a_small_case_by_hand() -> None:
    # rho is 2 and 1/2 in the first sequence, 1 in the second.
    two = math.log(2)
    values = estimates(chunk(([-2.0, -1.0], [-2.0 + two, -1.0 - two]), ([-1.0], [-1.0])))
    assert values["k1"] == pytest.approx(0.0)
    assert values["k2"] == pytest.approx(two**2 / 3)
    assert values["k3"] == pytest.approx(((1 - two) + (-0.5 + two)) / 3)
    assert values["k3_sequence"] == pytest.approx(0.5 / 2 / 2)
    assert values["mean_ratio"] == pytest.approx(3.5 / 3)
    assert values["token_mult_prob_error"] == pytest.approx(5 / 3)
    assert values["slime/train_rollout_logprob_abs_diff"] == pytest.approx(two / 2)
    assert values["mean_abs_delta"] == pytest.approx(2 * two / 3)
    assert values["verl/ppl_ratio"] == pytest.approx(1.0)
    assert values["areal/behave_approx_kl"] == -values["k1"]
    assert values["ess_fraction"] == pytest.approx(3.5**2 / (3 * 5.25))
