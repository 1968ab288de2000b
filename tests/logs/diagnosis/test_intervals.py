"""Intervals of shares and slopes: against simulation, and at their edges."""

from __future__ import annotations

import math

import pytest
import torch

from moeparity.logs.diagnosis.intervals import (
    BLOCKS,
    above,
    bounds,
    explains,
    interval,
    mean,
    negated,
    rate,
    share,
    slope,
)


def draws(count: int, seed: int) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_fieller_covers_the_slope_as_often_as_it_says() -> None:
    hits = 0
    for seed in range(400):
        x = 1 + 0.5 * draws(40, seed)
        evidence = slope("b", 0.7 * x + 0.2 * draws(40, 1000 + seed), x)
        low, high = bounds(evidence)
        hits += low <= 0.7 <= high
    assert hits / 400 == pytest.approx(0.95, abs=0.035)


def test_a_denominator_that_may_be_zero_bounds_nothing() -> None:
    evidence = slope("b", draws(30, 1), draws(30, 2) - draws(30, 2).mean() + 0.01)
    assert (evidence.low, evidence.high) == (-math.inf, math.inf)


def test_perfect_shares_are_named_from_eleven_sequences_on() -> None:
    ones = torch.ones(11, dtype=torch.float64)
    assert explains(share("s", ones, ones)) == "named"
    assert explains(share("s", ones[:10], ones[:10])) == "undecided"


def test_a_share_is_at_most_one_and_nothing_is_not_tested() -> None:
    whole = 1 + draws(50, 3).abs()
    assert bounds(share("s", 0.99 * whole, whole))[1] <= 1
    assert explains(share("s", torch.zeros(5), torch.zeros(5))) == "not tested"


def test_verdicts_lie_on_both_sides_of_a_line() -> None:
    evidence = mean("m", 3 + 0.1 * draws(50, 4), torch.ones(50, dtype=torch.float64))
    assert [above(evidence, line) for line in (2.0, 3.0, 4.0)] == ["named", "undecided", "ruled out"]
    assert above(negated(evidence), -4.0) == "named"


def test_blocks_keep_the_mean_and_about_the_width() -> None:
    sums, counts = draws(8 * BLOCKS, 5) + 1, torch.ones(8 * BLOCKS, dtype=torch.float64)
    evidence = interval(sums, counts)
    assert evidence.sequences == BLOCKS
    assert evidence.estimate == pytest.approx(float(sums.mean()))
    assert (evidence.high - evidence.low) / 2 == pytest.approx(2.576 / math.sqrt(8 * BLOCKS), rel=0.15)


def test_rates_that_no_token_or_every_token_shows_have_bounds() -> None:
    counts = torch.full((5,), 60.0, dtype=torch.float64)
    assert bounds(rate("r", torch.zeros_like(counts), counts)) == (0, pytest.approx(0.01))
    assert bounds(rate("r", counts, counts)) == (pytest.approx(0.99), 1)
