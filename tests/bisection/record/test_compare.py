"""A side's distance from a record held to its distance from itself, on numbers written here."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from moeparity.bisection.record.compare import Compared, excess
from moeparity.bisection.record.data import FAR

SEQUENCES, TOKENS = 30, 8


def noise(seed: int, scale: float = 0.01) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(SEQUENCES * TOKENS, dtype=torch.float64, generator=generator).abs() * scale


def compared(delta: Tensor, *floors: Tensor, half: float = 0.0, tokens: int = TOKENS) -> Compared:
    places = torch.arange(len(delta))
    return Compared(
        sequence=places // tokens,
        position=places % tokens + 1,
        delta=delta,
        half_unit=torch.full_like(delta, half),
        floors={f"draw {i}": floor for i, floor in enumerate(floors)},
        loudest=max((float(floor.max()) for floor in floors), default=0.0),
    )


@pytest.mark.parametrize("seed", range(20))
def test_a_draw_like_the_others_is_within(seed: int) -> None:
    comparison = compared(noise(seed), noise(seed + 100), noise(seed + 200))
    assert comparison.reproduced
    assert comparison.first_position() is None


@pytest.mark.parametrize("factor", [1.5, 2.5, 10.0])
def test_a_mean_above_the_floor_is_not(factor: float) -> None:
    comparison = compared(noise(0, 0.01 * factor).clamp(max=0.02), noise(1), noise(2))
    assert not bool(comparison.outside.any())
    assert not comparison.reproduced
    assert comparison.excess()[0].low > 0


def test_few_sequences_bound_nothing_and_hide_nothing() -> None:
    """One sequence has no interval: twice the floor is the most it may be."""
    floor = torch.full((TOKENS,), 0.01, dtype=torch.float64)
    assert compared(1.9 * floor, floor).reproduced
    assert not compared(2.1 * floor, floor).reproduced


def test_without_a_draw_the_last_digit_is_all_there_is() -> None:
    small, half = torch.full((TOKENS,), 4e-5, dtype=torch.float64), 5e-5
    assert compared(small, half=half).reproduced
    small[3] = 6e-5
    assert compared(small, half=half).first_position() == 4


@pytest.mark.parametrize("place", [0, 100, 239])
def test_one_token_far_outside_is_enough(place: int) -> None:
    floor = noise(1)
    delta = noise(0)
    delta[place] = 0.99 * FAR * float(floor.max())
    assert compared(delta, floor).reproduced
    delta[place] = 1.01 * FAR * float(floor.max())
    comparison = compared(delta, floor)
    assert not comparison.reproduced
    assert comparison.excess()[1]
    assert comparison.first_position() == place % TOKENS + 1


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_no_number_is_outside(value: float) -> None:
    delta = noise(0)
    delta[50] = value
    comparison = compared(delta, noise(1))
    assert comparison.outside.sum() == 1
    assert not comparison.reproduced
    assert comparison.first_position() == 50 % TOKENS + 1


@pytest.mark.parametrize("start", range(1, TOKENS - 1))
def test_the_position_from_which_a_mean_is_off(start: int) -> None:
    """No token is outside: what is added in each sequence from `start` on is less than that."""
    delta = noise(0, 0.001)
    delta += 0.08 * (torch.arange(len(delta)) % TOKENS + 1 >= start)
    comparison = compared(delta, noise(1).clamp(min=0.0099), noise(2))
    assert not bool(comparison.outside.any())
    first_position = comparison.first_position()
    assert first_position is not None
    assert first_position >= start
    before, after = (comparison.position < first_position, comparison.position <= first_position)
    assert not after.all() or first_position == TOKENS
    for keep, expected in ((before, True), (after, False)):
        part = Compared(
            sequence=comparison.sequence[keep],
            position=comparison.position[keep],
            delta=comparison.delta[keep],
            half_unit=comparison.half_unit[keep],
            floors={name: floor[keep] for name, floor in comparison.floors.items()},
            loudest=comparison.loudest,
        )
        assert (not keep.any()) or part.reproduced == expected


def test_sequences_are_paired() -> None:
    """One sequence is far from everything, itself included: the rest decides."""
    floor = torch.full((SEQUENCES,), 0.1, dtype=torch.float64)
    floor[0] = 100.0
    sequence_means = floor + 0.01 * torch.linspace(0.5, 1.5, SEQUENCES, dtype=torch.float64)
    over, within = excess(sequence_means, floor, torch.zeros_like(sequence_means), torch.full_like(sequence_means, 8.0))
    assert 0 < over.low < 0.01 / 8 < over.high
    assert not within
