"""What each draw's figures are, by formulas written here, and which trial is told to end which spike."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from moeparity.bisection.spikes.data import (
    CAUSES,
    EARLIER_ROUTES,
    NOT_TOLD,
    NOT_TRIED,
    ONE_FLIP,
    OWN_ROUTES,
    UNLIKELY,
    Cause,
    Shared,
    SpikingDraw,
)
from moeparity.bisection.spikes.measure import _causes, _draws, _first_layer, _shared
from moeparity.bisection.spikes.observe import DrawValues, spikes
from moeparity.bisection.spikes.search import Tried

ABOVE = 1.1
PLACE = (0, 0, 2)
"""The draw, sequence and column of the one spike."""


def drawn(delta: Tensor, *, likeliest: float = 0.0, flips: tuple[tuple[int, int], ...] = ()) -> DrawValues:
    """Values of one draw, delta [B, T]; flips: the layers and columns at which the first sequence flips."""
    values = torch.zeros(4, 1, *delta.shape, dtype=torch.float64)
    values[0, 0], values[(1, *PLACE)] = delta, likeliest
    counts = torch.ones(1, *delta.shape, dtype=torch.bool)
    counts[..., 0] = False
    flipped = torch.zeros(1, 2, *delta.shape, dtype=torch.bool)
    for layer, column in flips:
        flipped[0, layer, 0, column] = True
    return DrawValues(values=values, counts=counts, flips=flipped)


DELTA = torch.tensor([[9.0, 0.01, -0.2, 0.0], [9.0, 0.03, 0.0, -0.05]], dtype=torch.float64)


def test_a_draw_is_nemo_rls_metric_by_token_and_by_sequence() -> None:
    values = drawn(DELTA)
    (draw,) = _draws(values, values.counts & spikes(values.values[0], ABOVE))
    factors = [[math.exp(abs(delta)) for delta in row[1:]] for row in DELTA.tolist()]
    every = [factor for row in factors for factor in row]
    assert draw.mean == pytest.approx(sum(every) / len(every), rel=1e-14)
    assert draw.highest_sequence == pytest.approx(max(sum(row) / len(row) for row in factors), rel=1e-14)
    assert draw.highest == pytest.approx(math.exp(0.2), rel=1e-14)
    assert draw.spikes == 1
    assert draw.carried == pytest.approx((math.exp(0.2) - 1) / sum(factor - 1 for factor in every), rel=1e-12)


def test_equal_draws_carry_nothing() -> None:
    values = drawn(torch.zeros(1, 3, dtype=torch.float64))
    (draw,) = _draws(values, torch.zeros_like(values.counts))
    assert draw == SpikingDraw(draw=0, mean=1.0, highest_sequence=1.0, highest=1.0, spikes=0, carried=0.0)


FLIP = ((1, 1),)
EARLIER = ((0, 0),)
CASES = {
    "the first rung that ends it": (FLIP, Tried(draw=0, sequence=0, column=2, first_flip=0.01), 0.0, ONE_FLIP),
    "all layers": (FLIP, Tried(draw=0, sequence=0, column=2, first_flip=0.19, own_routes=-0.09), 0.0, OWN_ROUTES),
    "all tokens": (EARLIER, Tried(draw=0, sequence=0, column=2, all_routes=0.02), 0.0, EARLIER_ROUTES),
    "below the bound, yet more than half is left": (
        FLIP,
        Tried(draw=0, sequence=0, column=2, first_flip=0.101, own_routes=0.15, all_routes=0.15),
        0.15,
        NOT_TOLD,
    ),
    "no route differs": ((), None, 0.05, UNLIKELY),
    "a later route differs": (((0, 2), (1, 3)), None, 0.05, UNLIKELY),
    "the likeliest token spikes too": ((), None, -0.2, NOT_TOLD),
    "a route differs that was not forced": (EARLIER, None, 0.05, NOT_TRIED),
}


@pytest.mark.parametrize(("flips", "tried", "likeliest", "cause"), CASES.values(), ids=CASES)
def test_the_cause_is_what_a_trial_ends(
    flips: tuple[tuple[int, int], ...], tried: Tried | None, likeliest: float, cause: str
) -> None:
    values = drawn(DELTA, likeliest=likeliest, flips=flips)
    spiking = values.counts & spikes(values.values[0], ABOVE)
    assert spiking.nonzero().tolist() == [list(PLACE)]
    assert _causes(values, spiking, [] if tried is None else [tried], ABOVE) == {PLACE: cause}


def test_every_cause_is_one_that_is_explained() -> None:
    assert {cause for *_, cause in CASES.values()} == set(CAUSES)
    assert Cause(name=ONE_FLIP, spikes=1, tokens=1).name in CAUSES


def test_what_is_shared_is_counted_of_spikes_and_of_all() -> None:
    values = drawn(DELTA, flips=FLIP)
    values.values[3] = torch.tensor([[[0, -1, -5, -1], [0, -5, -1, -1]]])
    spiking = values.counts & spikes(values.values[0], ABOVE)
    margins = torch.tensor([[[math.nan, 8, 0, 4], [math.nan, 16, 32, 64]]])
    shared = {trait.name: trait for trait in _shared(values, spiking, margins)}
    assert shared["P(token) below 0.1"] == Shared(name="P(token) below 0.1", of_spikes=1.0, of_all=2 / 6)
    assert shared["own route differs in some layer"].of_spikes == 1.0
    assert shared["own route differs in some layer"].of_all == 1 / 6
    assert shared["only routes of earlier tokens differ"].of_all == 1 / 6
    (margin,) = (trait for name, trait in shared.items() if name.startswith("a router's margin"))
    assert (margin.of_spikes, margin.of_all) == (1.0, 1 / 6)


def test_the_first_layer_is_the_most_frequent_one() -> None:
    flipped = torch.tensor([[False, True, True], [True, True, False], [False, True, False], [False, False, False]])
    assert _first_layer(flipped) == 1
    assert _first_layer(flipped[3:]) is None
