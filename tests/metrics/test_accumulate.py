"""Empty logs, single tokens, infinities, overflow, columns a log lacks, and what small errors must satisfy."""

from __future__ import annotations

import math

import pytest
import torch

from moeparity.metrics.accumulate import Accumulator
from moeparity.metrics.quantities import js_surrogate
from moeparity.metrics.registry import METRICS
from moeparity.metrics.running import RELATIVE_ERROR, Magnitudes
from tests.metrics.made import chunk, estimates, noisy

INF = math.inf


def test_equal_sides_are_exactly_so() -> None:
    chunk_in = noisy([5, 9], 0.3)
    values = estimates(chunk((chunk_in.rollout.tolist(), chunk_in.rollout.tolist())))
    zero = ("k1", "k2", "k3", "k3_swapped", "mean_abs_delta", "p99_9_abs_delta", "max_abs_delta", "max_abs_dp", "f2")
    assert all(values[name] == 0 for name in (*zero, "verl/chi2_token", "verl/chi2_seq", "nemo-rl/js_divergence_error"))
    at_one = ("mean_ratio", "token_mult_prob_error", "verl/ppl_ratio", "slime/tis", "nemo-rl/max_seq_mult_prob_error")
    assert all(values[name] == 1 for name in at_one)


def test_no_token_gives_no_number() -> None:
    assert all(math.isnan(value) for value in estimates(chunk(([], []))).values())
    assert all(math.isnan(value) for value in estimates().values())


def test_sequences_without_a_token_change_nothing() -> None:
    filled = chunk(([-1.0, -2.0], [-1.5, -2.0]))
    assert estimates(chunk(([], []), ([-1.0, -2.0], [-1.5, -2.0]), ([], []))) == pytest.approx(
        estimates(filled), nan_ok=True
    )


def test_one_token() -> None:
    values = estimates(chunk(([-1.0], [-1.25])))
    assert values["k1"] == values["max_abs_delta"] == values["verl/log_ppl_diff_max"] == 0.25
    assert values["median_abs_delta"] == pytest.approx(0.25, rel=RELATIVE_ERROR)
    assert values["verl/rollout_is_std"] == 0
    assert math.isnan(values["verl/rollout_probs_diff_std"])
    assert math.isnan(values["pearson"])


def test_a_token_the_sampler_gave_probability_0() -> None:
    totals = Accumulator(tuple(METRICS.values()))
    totals.add(chunk(([-INF, -1.0], [-1.0, -1.0])))
    values = {metric.name: totals.estimate(metric) for metric in totals.metrics}
    assert totals.infinite == 1
    assert values["k1"] == -INF
    infinite = ("k2", "k3", "mean_abs_delta", "max_abs_delta", "p99_abs_delta", "mean_ratio", "verl/k3_kl")
    assert all(values[name] == INF for name in infinite)
    # Clamped twins stay finite, as in the trainer.
    assert values["k3_clamped"] == values["miles/train_rollout_kl"] == 5.0
    assert values["verl/rollout_is_mean"] == 1.5
    assert values["nemo-rl/sampling_importance_ratio"] == 0.5
    assert values["trl/importance_sampling_ratio/mean"] == 0.0
    assert values["mean_abs_dp"] == pytest.approx(math.exp(-1) / 2)


def test_a_token_the_trainer_gave_probability_0() -> None:
    values = estimates(chunk(([-1.0, -1.0], [-INF, -1.0])))
    assert values["k1"] == values["k3"] == values["k3_swapped"] == values["token_mult_prob_error"] == INF
    assert values["mean_ratio"] == values["nemo-rl/sampling_importance_ratio"] == 0.5
    assert values["verl/training_ppl"] == INF


def test_probability_0_on_both_sides_is_agreement() -> None:
    chunk_in = chunk(([-INF, -1.0], [-INF, -1.0]))
    assert not chunk_in.delta.any()
    assert not js_surrogate(chunk_in).any()


@pytest.mark.parametrize(("delta", "ratio"), [(88.0, math.exp(88.0)), (89.0, 0.0)])
def test_what_overflows_in_fp32_counts_as_0_in_nemo_rl(delta: float, ratio: float) -> None:
    totals = Accumulator((METRICS["nemo-rl/sampling_importance_ratio"], METRICS["k3"]))
    totals.add(chunk(([-100.0], [-100.0 + delta])))
    assert totals.estimate(totals.metrics[0]) == pytest.approx(ratio)
    assert totals.estimate(totals.metrics[1]) == pytest.approx(math.exp(delta))
    assert totals.overflowing == (delta > 88.7)


def test_overflow_in_fp64_is_infinite_except_in_the_effective_sample_size() -> None:
    values = estimates(chunk(([-800.0, -1.0, -1.0], [-1.0, -1.0, -1.0])), names=["k3", "ess_fraction"])
    assert values == {"k3": INF, "ess_fraction": pytest.approx(1 / 3)}


def test_what_a_log_lacks_is_said_and_stops_nothing_else() -> None:
    totals = Accumulator(tuple(METRICS.values()))
    totals.add(noisy([4], 0.1))
    totals.add(chunk(([-1.0], [-1.0])))
    needing = {name for name, metric in METRICS.items() if metric.needs}
    assert totals.missing.keys() == needing
    assert "no entropy" in totals.missing["prime-rl/kl_ent_ratio"]
    assert all(math.isnan(totals.estimate(METRICS[name])) for name in needing)
    assert totals.estimate(METRICS["prime-rl/mismatch_kl/mean"]) > 0


def test_small_errors_satisfy_the_identities() -> None:
    values = estimates(noisy([4000], 0.01))
    half = values["k2"]
    assert values["k3"] == pytest.approx(half, rel=0.01)
    assert values["k3_swapped"] == pytest.approx(half, rel=0.01)
    assert values["nemo-rl/js_divergence_error"] == pytest.approx(half / 4, rel=0.01)
    # chi2 = 2 k3 + 2 (E[rho] - 1), exactly up to third order.
    assert values["chi2_token"] - 2 * (values["mean_ratio"] - 1) == pytest.approx(2 * half, rel=0.02)
    assert values["ess_fraction"] == pytest.approx(1 - 2 * half, abs=half / 10)


@pytest.mark.parametrize("at", [1e-4, 0.01, 0.5, 0.9, 0.999, 1.0])
def test_quantiles_over_many_orders_of_magnitude(at: float) -> None:
    values = (
        torch.randn(3000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        .mul(4)
        .exp()
        .clamp(max=2.0**20)
    )
    sketch = Magnitudes()
    for part in values.split(701):
        sketch.add(part)
    exact = float(values.sort().values[max(0, math.ceil(at * 3000) - 1)])
    assert sketch.quantile(at) == pytest.approx(exact, rel=RELATIVE_ERROR * (1 + 1e-6))


def test_quantiles_of_zeros_infinities_and_nothing() -> None:
    sketch = Magnitudes()
    assert math.isnan(sketch.quantile(0.5))
    sketch.add(torch.tensor([0.0, 0.0, 1e-30, INF], dtype=torch.float64))
    assert [sketch.quantile(at) for at in (0.5, 0.75, 1.0)] == [0.0, 0.0, INF]
    for bad in (math.nan, -1.0):
        with pytest.raises(ValueError, match="NaN or negative"):
            sketch.add(torch.tensor([bad], dtype=torch.float64))
