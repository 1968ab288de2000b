"""Smoothing, trend and spikes against closed forms, scipy, and their own stated rates."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats

from moeparity.logs.series.statistics import ema, spikes, trend


def normal(count: int, seed: int) -> list[float]:
    return torch.randn(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).tolist()


def test_ema_decays_by_time_not_by_count() -> None:
    averages = ema([0, 10, 11], [1.0, 0.0, 0.0], tau=5)
    assert averages == pytest.approx([1, math.exp(-2), math.exp(-2.2)])


def test_two_half_steps_are_one_step_of_a_constant() -> None:
    coarse, fine = ema([0, 2], [1.0, 3.0], tau=4), ema([0, 1, 2], [1.0, 3.0, 3.0], tau=4)
    assert coarse[-1] == pytest.approx(fine[-1])


def test_ema_passes_over_what_is_not_finite() -> None:
    averages = ema([0, 1, 2], [math.nan, 2.0, math.inf], tau=3)
    assert math.isnan(averages[0])
    assert averages[1:] == [2.0, 2.0]


@pytest.mark.parametrize("steps", [[0, 0], [1, 0]])
def test_steps_must_increase(steps: list[int]) -> None:
    with pytest.raises(ValueError, match="increase"):
        ema(steps, [1.0, 1.0], tau=1)
    with pytest.raises(ValueError, match="increase"):
        trend(steps, [1.0, 1.0])


def test_tau_must_be_positive() -> None:
    with pytest.raises(ValueError, match="tau"):
        ema([0], [1.0], tau=0)


def test_trend_is_scipys() -> None:
    steps = [step for step in range(500) if step * step % 7 == 2]
    values = [round(noise + step / 300, 1) for noise, step in zip(normal(len(steps), 3), steps, strict=True)]
    result = trend(steps, values)
    assert not result.log
    assert result.slope == pytest.approx(stats.theilslopes(values, steps).slope)
    # scipy gives tau-b; its asymptotic p has the same variance for ties in y, without the continuity correction.
    expected = stats.kendalltau(steps, values, method="asymptotic").pvalue
    assert result.p == pytest.approx(expected, rel=0.05)


def test_growth_by_a_factor_is_a_slope_of_logarithms() -> None:
    result = trend(range(20), [1e-4 * 1.1**step for step in range(20)])
    assert result.log
    assert math.exp(result.slope) == pytest.approx(1.1)
    assert result.p < 1e-6


def test_a_long_series_is_thinned_to_blocks() -> None:
    result = trend(range(5000), [float(step) - 10 for step in range(5000)])
    assert result.slope == pytest.approx(1)
    assert result.points == 5000


def test_too_short_a_trend_is_none() -> None:
    assert trend([0, 1, 2], [1.0, 2.0, 3.0]).p == 1


def test_noise_alone_seldom_spikes() -> None:
    alarmed = sum(bool(spikes(normal(100, seed))) for seed in range(200))
    assert alarmed <= 20  # 1 % is stated for normal residuals of known spread; the MAD is estimated


def test_a_spike_on_a_trend_is_found_and_the_trend_is_not() -> None:
    values = [1e-3 * math.exp(step / 40 + 0.1 * noise) for step, noise in enumerate(normal(200, 7))]
    values[120] *= 3
    assert [spike.index for spike in spikes(values)] == [120]


def test_infinity_is_a_spike_and_a_flat_series_has_its_step() -> None:
    assert [spike.index for spike in spikes([1.0, math.inf])] == [1]
    assert [spike.index for spike in spikes([1.0] * 10 + [1.1] + [1.0] * 10)] == [10]
