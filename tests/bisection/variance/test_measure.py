"""The ratio against 1: counted where it is not exactly 1, of the tokens that have one."""

from __future__ import annotations

import math

import torch

from moeparity.bisection.variance.measure import ratio


def test_exact_ones_are_told_from_the_next_number() -> None:
    delta = torch.tensor([0.0, -0.0, 2.0**-52, -(2.0**-40)], dtype=torch.float64)
    figures = ratio(delta)
    assert (figures.scored, figures.off) == (4, 2)
    assert figures.low == math.exp(-(2.0**-40))
    assert figures.high == 1 + 2.0**-52


def test_a_ratio_that_is_no_number_is_off_and_in_no_figure() -> None:
    figures = ratio(torch.tensor([0.0, math.nan], dtype=torch.float64))
    assert (figures.scored, figures.off, figures.low, figures.high, figures.mean) == (2, 1, 1.0, 1.0, 1.0)
    nothing = ratio(torch.zeros(0, dtype=torch.float64))
    assert (nothing.scored, nothing.off) == (0, 0)
    assert math.isnan(nothing.mean)
