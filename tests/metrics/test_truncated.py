"""Metrics of sides that leave tokens out of what they sample from: their -inf is told, counted, and in no mean."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from moeparity.metrics.tokens import TokenMetrics, token_metrics
from moeparity.metrics.verdict import Gate

IDS = torch.tensor([[0, 1, 2, 3]])
MASK = torch.ones_like(IDS, dtype=torch.bool)
WHOLE = torch.tensor([0.5, 0.25, 0.125, 0.125], dtype=torch.float64).log().expand(1, 4, 4).clone()
KEPT = torch.tensor([0.5, 0.25, 0.25, 0.0], dtype=torch.float64).log().expand(1, 4, 4).clone()
"""The last token is left out, and its mass goes to the third."""


def metrics(reference: Tensor, candidate: Tensor, truncated: tuple[bool, bool]) -> TokenMetrics:
    return token_metrics(reference, candidate, IDS, MASK, reported=(True, True), truncated=truncated)


def test_a_token_outside_is_counted_and_in_no_mean_of_sampled_tokens() -> None:
    of = metrics(WHOLE, KEPT, (False, True))
    assert of.outside.tolist() == [[False, False, False, True]]
    assert not of.nonfinite.any()
    assert of.sampler[0, 3] == -math.inf
    assert of.delta.tolist() == [[0.0, 0.0, math.log(0.125) - math.log(0.25), 0.0]]
    sums = of.sums()
    assert (sums.tokens.tolist(), sums.outside.tolist(), sums.inside.tolist()) == ([3.0], [1.0], [2.0])
    assert math.isclose(sums.mean("abs_delta"), math.log(2) / 2)
    assert math.isclose(sums.mean("k3"), (0.5 - 1 + math.log(2)) / 2)


def test_the_verdict_fails_and_says_why() -> None:
    verdict = metrics(WHOLE, KEPT, (False, True)).sums().verdict(Gate(metric="k3", below=1.0))
    assert verdict.status == "fail"
    assert verdict.reason == "sampled tokens outside the kept set, of log-probability -inf: 1"


def test_equal_sides_that_leave_the_same_out_fail_too() -> None:
    """Neither can have sampled the token."""
    sums = metrics(KEPT, KEPT.clone(), (True, True)).sums()
    assert (sums.unequal.tolist(), sums.outside.tolist()) == ([0.0], [1.0])
    assert sums.verdict(Gate(metric="k3", below=1.0)).status == "fail"


def test_without_a_filter_an_infinity_is_none_of_a_kept_set() -> None:
    of = metrics(WHOLE, KEPT, (False, False))
    assert of.nonfinite.tolist() == [[False, True, True, True]]
    assert not of.outside.any()


def test_nan_is_no_token_left_out() -> None:
    candidate = KEPT.clone()
    candidate[0, 0, 1] = math.nan
    of = metrics(WHOLE, candidate, (False, True))
    assert of.nonfinite.tolist() == [[False, True, False, False]]


def test_the_finite_divergence_is_that_of_distributions() -> None:
    of = metrics(WHOLE, KEPT, (False, True))
    expected = 0.25 * math.log(0.25 / 0.125)
    assert all(math.isclose(value, expected) for value in of.kl_candidate_reference[0, 1:].tolist())
    assert not of.unshared.any()


def test_the_infinite_divergence_is_over_the_tokens_that_both_keep() -> None:
    """Sum of P (log P - log Q) - P + Q, of the candidate's P over the reference's Q, without the fourth token."""
    of = metrics(KEPT, WHOLE, (True, False))
    expected = 0.125 * math.log(0.125 / 0.25) - 0.125 + 0.25
    assert all(math.isclose(value, expected) for value in of.kl_candidate_reference[0, 1:].tolist())
    assert of.unshared[0, 1:].all()
    assert of.kl_reference_candidate[0, 1].item() > 0
