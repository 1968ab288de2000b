"""The benchmark of heavy tails: what it draws, what it counts, and when it fails."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from benchmarks import tails
from benchmarks.planted.factorial import shapley
from benchmarks.tails import GIVEN, LARGER, Row, carrying, failed, rows, table
from moeparity.search.roles import Role


def a_case(seed: int) -> tails.Costs:
    """Two toggles, of which b acts in one sequence of twelve; both cost a little everywhere."""
    rng = np.random.default_rng(seed)
    size = LARGER + GIVEN
    a, b = rng.exponential(0.01, (2, size))
    b = b + rng.exponential(1.0, size) * (rng.random(size) < 1 / 12)
    return np.stack([np.zeros(size), a, b, a + b])


def test_a_draw_is_the_same_again_and_differs_in_two_attributes_at_least() -> None:
    assert tails.drawn(3, 1) == tails.drawn(3, 1) != tails.drawn(3, 2)
    assert all(2 <= len(tails.drawn(number, 0)[2]) <= 4 for number in range(20))


def test_which_part_of_the_sequences_carries_it() -> None:
    assert carrying(np.array([1.0, 1.0, 0.0, 0.0])) == 0.5
    assert carrying(np.zeros(4)) == 1


def test_shares_are_held_to_those_of_the_sequences_that_are_not_given() -> None:
    costs = a_case(0)
    (row,) = rows(costs)
    assert row.share == shapley(costs[:, :LARGER], 2).mean(1)[1]
    assert row.role is Role.CULPRIT
    low, high = row.intervals["moeparity's"]
    narrow_low, narrow_high = row.intervals["bootstrap-t"]
    assert low < narrow_low < narrow_high < high
    assert 1 < row.width("moeparity's") < 3
    assert row.interval[0] <= row.part <= row.interval[1]


def test_a_share_of_which_nothing_was_given_is_a_miss() -> None:
    costs = a_case(0)
    costs[2, LARGER:], costs[3, LARGER:] = 0.0, costs[1, LARGER:]
    (row,) = rows(costs)
    assert row.share > 0
    assert not row.covered("moeparity's")


def row(share: float, interval: tuple[float, float], role: Role) -> Row:
    intervals = {"normal": (-1.0, 1.0), "bootstrap-t": (-1.0, 1.0), "moeparity's": interval}
    return Row(share, 1.0, (-math.inf, math.inf), intervals, role)


@pytest.mark.parametrize(
    ("cases", "wrong"),
    [
        ([[row(1.0, (0.5, 2.0), Role.CULPRIT)]] * 9 + [[row(1.0, (2.0, 3.0), Role.UNDECIDED)]], False),
        ([[row(1.0, (0.5, 2.0), Role.CULPRIT)]] * 8 + [[row(1.0, (2.0, 3.0), Role.UNDECIDED)]] * 2, True),
        ([[row(1.0, (-5.0, 2.0), Role.UNDECIDED)]], True),
        ([[row(1.0, (-1.0, 2.0), Role.HELPS)]], True),
        ([[row(-1.0, (-1.5, 0.0), Role.CONTRIBUTES)]], True),
    ],
)
def test_misses_widths_and_wrong_signs_fail(cases: Sequence[Sequence[Row]], wrong: bool) -> None:
    assert failed(cases) is wrong
    assert any(line.startswith("| moeparity's |") for line in table([[row(1.0, (0.5, 2.0), Role.CULPRIT)]]))
