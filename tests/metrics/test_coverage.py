"""The intervals hold the truth about as often as they say, on simulated k3 of the shape real mismatch has."""

from __future__ import annotations

import pytest
import torch

from benchmarks import coverage
from benchmarks.coverage import REQUIRED, TOKENS, failures, measure, shares, tolerance
from moeparity.metrics.interval import token_mean
from moeparity.metrics.verdict import Interval

REPLICATIONS = 250


def test_the_simulated_shape_is_the_published_one() -> None:
    top_permille, top_percent = shares(REQUIRED, sequences=5000)
    assert top_permille == pytest.approx(0.41, abs=0.04)
    assert top_percent == pytest.approx(0.80, abs=0.03)


@pytest.mark.parametrize("sequences", [25, 100])
def test_covers_the_truth_and_leaves_a_gate_on_it_open(sequences: int) -> None:
    # 250 replications: three binomial standard errors are 0.057 at a coverage of 0.90 and 0.041 at a share of 0.05.
    outcome = measure(REQUIRED, sequences, REPLICATIONS, seed=1, resamples=599)
    assert failures(outcome) == []
    assert outcome.verdicts[1.0]["inconclusive"] == pytest.approx(outcome.covered, abs=1e-9)


def test_a_gate_far_from_the_truth_is_decided() -> None:
    verdicts = measure(REQUIRED, 200, REPLICATIONS, seed=2, resamples=599).verdicts
    assert verdicts[0.5]["fail"] > 0.95
    assert verdicts[2.0]["pass"] > 0.95


def test_intervals_of_half_the_width_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def narrow(*args: object, **keywords: object) -> Interval:
        return token_mean(*args, **{**keywords, "level": 0.68})  # type: ignore[arg-type]

    monkeypatch.setattr(coverage, "token_mean", narrow)
    assert any("coverage" in sentence for sentence in failures(measure(REQUIRED, 50, REPLICATIONS, resamples=599)))


def test_closed_form_of_the_mean() -> None:
    k3 = REQUIRED.draw(20_000, TOKENS, torch.Generator().manual_seed(3))
    error = float(k3.mean(1).std()) / 20_000**0.5
    assert float(k3.mean()) == pytest.approx(REQUIRED.mean, abs=4 * error)


def test_tolerance_is_three_binomial_standard_errors() -> None:
    assert tolerance(0.9, 250) == pytest.approx(3 * 0.018974, rel=1e-4)
