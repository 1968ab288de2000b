"""A number is solved for from what its values leave unexplained."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeparity.evidence.explain.numbers import alike, digits, figures, plain, search, shortest, solve, solve_together


@pytest.mark.parametrize("truth", [3.7e-4, 1e-20, 0.8, 1.7, -0.37, 12345.0, 2.0**-12, 50.0])
@pytest.mark.parametrize("at", [1e-6, 1.0, 0.0])
def test_the_least_of_a_parabola_is_found(truth: float, at: float) -> None:
    values = list(solve(lambda x: (x - truth) ** 2, at))
    assert min(abs(x - truth) for x in values) <= max(1e-3 * abs(truth), 1e-12)


def test_many_minima_need_a_dense_grid() -> None:
    def waves(x: float) -> float:
        return 2 - math.cos(5 * math.log(x / 5e5)) - math.exp(-(math.log(x / 5e5) ** 2)) if x > 0 else math.inf

    assert any(abs(x / 5e5 - 1) < 1e-3 for x in solve(waves, 1e4, dense=True))


def test_nothing_is_solved_for_where_nothing_depends_on_it() -> None:
    assert list(solve(lambda _: 1.0, 0.5)) == []


def test_values_that_cannot_be_are_passed_by() -> None:
    values = list(solve(lambda x: (x - 0.3) ** 2 if x > 0 else math.inf, 1.0))
    assert 0.3 in values
    assert min(values) > 0


def test_several_searches_ask_at_the_same_time_and_find_what_each_finds_alone() -> None:
    truths = {"near": 0.9, "far": 60.0, "none": None}
    rounds = []

    def remainder(name: str, x: float) -> float:
        truth = truths[name]
        return 1.0 if truth is None else (x - truth) ** 2

    def remainders(numbers_of: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
        rounds.append(set(numbers_of))
        return {name: [remainder(name, x) for x in numbers] for name, numbers in numbers_of.items()}

    together = solve_together({name: search(1.0, near=True) for name in truths}, remainders)
    assert list(together) == list(truths)
    assert together == {name: solve(partial(remainder, name), 1.0, near=True) for name in truths}
    assert rounds[0] == {"near", "far", "none"}
    assert {"near", "far"} in rounds
    assert "none" not in rounds[1]
    assert solve_together({}, remainders) == {}


def test_plain_numbers_lie_on_both_sides() -> None:
    assert {3e-4, 4e-4, 3.7e-4, 3.8e-4, 2.0**-12, 2.0**-11} <= plain(3.731e-4, 0.0, 1.0)
    assert -0.4 in plain(-0.37, -1.0, 0.0)
    assert plain(0.0, -1.0, 1.0) == set()


@pytest.mark.parametrize(
    ("low", "high", "first"),
    [
        (3.63e-4, 3.79e-4, 3.7e-4),
        (0.24, 0.31, 0.3),
        (-0.31, -0.24, -0.3),
        (12344.4, 12345.9, 12345.0),
        (0.5, 0.5, 0.5),
    ],
)
def test_the_shortest_decimal_of_an_interval(low: float, high: float, first: float) -> None:
    assert shortest(low, high)[0] == first


@given(st.floats(1e-12, 1e12), st.floats(1e-6, 1.0))
def test_every_decimal_of_an_interval_lies_in_it(low: float, width: float) -> None:
    high = low * (1 + width)
    decimals = shortest(low, high)
    assert decimals
    assert all(low <= x <= high for x in decimals)
    assert len({digits(x) for x in decimals if x}) <= 2


def test_the_ends_of_an_interval_are_exact() -> None:
    def exact(x: float) -> bool:
        return 3.61e-4 <= x <= 3.78e-4

    low, high, *decimals = alike(exact, 3.7e-4)
    assert exact(low)
    assert exact(high)
    assert low == pytest.approx(3.61e-4, rel=1e-4)
    assert high == pytest.approx(3.78e-4, rel=1e-4)
    assert decimals[0] == 3.7e-4


@pytest.mark.parametrize(("x", "count"), [(0.25, 2), (1e-20, 1), (100.0, 1), (12345.0, 5), (-0.37, 2), (0.0, 0)])
def test_digits(x: float, count: int) -> None:
    assert digits(x) == count


def test_a_number_is_followed_beyond_twice_and_half_of_the_first() -> None:
    """Where one number made up for another, it may lie far from where it was solved for first."""
    assert min(abs(x / 0.05 - 1) for x in solve(lambda x: (x - 0.05) ** 2, 0.0046, near=True)) < 1e-3
    assert min(abs(x / 4e-4 - 1) for x in solve(lambda x: (x - 4e-4) ** 2, 0.0046, near=True)) < 1e-3


def test_what_is_still_missing_is_not_solved_for() -> None:
    """A minimum in noise is left after a few steps: finer figures tell nothing."""
    tried: list[float] = []

    def noisy(x: float) -> float:
        tried.append(x)
        return 1.0 + (x - 0.7) ** 2 + 1e-4 * math.sin(1e5 * x)

    values = list(solve(noisy, 0.5, near=True))
    assert min(abs(x - 0.7) for x in values) < 0.1
    assert len(set(tried)) < 14


def test_plain_numbers_are_binary_ones_and_ratios_too() -> None:
    near = plain(1.12503, 1.1249, 1.1251)
    assert {1.125, 1.1, 1.2} <= near
    assert 1.1328125 in plain(1.13279, 1.1327, 1.1329)
    assert 1.1328125 not in plain(1.1327, 1.13269, 1.13271)
    assert -1 / 3 in plain(-0.33332, -0.33333, -0.33331)
    assert 1 / 3 not in plain(0.334, 0.3339, 0.3341)


@pytest.mark.parametrize(
    ("x", "count"),
    [
        (0.015625, 2),
        (0.5, 1),
        (-0.25, 2),
        (0.0156, 3),
        (2.0**-20, 2),
        (0.0, 0),
        (1.125, 2),
        (-0.6875, 2),
        (1.1328125, 8),
        (3 * 2.0**-13, 10),
        (12288.0, 5),
    ],
)
def test_a_number_of_few_bits_is_a_plain_number(x: float, count: int) -> None:
    assert figures(x) == count


def test_a_power_of_two_in_an_interval_is_among_those_that_do_as_well() -> None:
    assert 2.0**-6 in set(alike(lambda x: 0.01562 <= x <= 0.01564, 0.01563))
    assert -(2.0**-6) in set(alike(lambda x: -0.01564 <= x <= -0.01562, -0.01563))
