"""Shares as parts of the whole, which varies over sequences as they do."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pytest
import torch

from moeparity.metrics.interval import token_mean
from moeparity.search.contrast import Bounds
from moeparity.search.memo import Memo, Mixture, Outcome
from moeparity.search.tree import Cell, Group
from moeparity.search.waterfall import waterfall
from tests.search.games import memo_of, no_bounds, outcome

A, B, AB, NONE = frozenset("a"), frozenset("b"), frozenset("ab"), frozenset[str]()
BOTH = Group("all", ("a", "b"))
REPLICATIONS, SEQUENCES = 120, 40


def bounds(sums: Sequence[float], tokens: Sequence[float]) -> tuple[float, float]:
    interval = token_mean(torch.tensor(sums), torch.tensor(tokens), resamples=399)
    return interval.low, interval.high


def parts(of: Memo, tree: Cell, bounds: Bounds) -> dict[str, tuple[float, float]]:
    return {row.name: row.part for row in waterfall(of, tree, bounds).shares}


def played(sums: Mapping[Mixture, Sequence[float]]) -> Memo:
    def evaluate(mixtures: Sequence[Mixture]) -> dict[Mixture, Outcome]:
        return {c: outcome(sum(sums[c]) / len(sums[c]), sums=sums[c]) for c in mixtures}

    return Memo(("a", "b"), evaluate)


def test_parts_are_shares_over_the_whole() -> None:
    shares = waterfall(played({NONE: [0.0] * 4, A: [0.5] * 4, B: [1.0] * 4, AB: [2.0] * 4}), BOTH, no_bounds).shares
    assert [row.part for row in shares] == [(float(row.share) / 2,) * 2 for row in shares]


def test_a_steady_share_of_a_whole_that_varies_is_a_part_that_varies() -> None:
    # b costs the same in every sequence; a costs much in a few.
    costs = [1.0 if i % 8 else 30.0 for i in range(SEQUENCES)]
    steady = [1.0 + 0.01 * (i % 5) for i in range(SEQUENCES)]
    sums = [a + b for a, b in zip(costs, steady, strict=True)]
    game = played({NONE: [0.0] * SEQUENCES, A: costs, B: steady, AB: sums})
    _, b = waterfall(game, BOTH, bounds).shares
    total = float(b.share) / (sum(steady) / sum(sums))
    in_nats = (b.interval[1] - b.interval[0]) / total
    low, high = parts(game, BOTH, bounds)["b"]
    assert low < sum(steady) / sum(sums) < high
    assert high - low > 10 * in_nats


def test_the_interval_holds_the_true_part() -> None:
    generator = torch.Generator().manual_seed(0)
    hits = 0
    for _ in range(REPLICATIONS):
        a, b = torch.empty(2, SEQUENCES, dtype=torch.float64).exponential_(1.0, generator=generator)
        sums = {NONE: [0.0] * SEQUENCES, A: a.tolist(), B: (3 * b).tolist(), AB: (a + 3 * b).tolist()}
        low, high = parts(played(sums), BOTH, bounds)["a"]
        hits += low <= 0.25 <= high
    # Three binomial standard errors about 0.95 are 0.06.
    assert 0.89 <= hits / REPLICATIONS < 1


def test_all_of_it_in_every_sequence_is_all_of_it() -> None:
    # One sequence carries it.
    sums = {NONE: [0.0] * 3, A: [0.0] * 3, B: [1.0, 50.0, 0.1], AB: [1.0, 50.0, 0.1]}
    assert parts(played(sums), BOTH, bounds) == {"a": (0.0, 0.0), "b": (1.0, 1.0)}
    assert parts(memo_of(("a",), lambda on: 0.5 * len(on)), "a", bounds) == {"a": (1.0, 1.0)}


def test_a_sequence_without_divergence_counts() -> None:
    sums = {NONE: [0.0] * 5, A: [2.0, 1.0, 1.0, 2.0, 1.0], B: [2.0, 3.0, 1.0, 1.0, 2.0], AB: [0.0, 4.0, 2.0, 3.0, 3.0]}
    recorded: list[Sequence[float]] = []

    def caught(share: Sequence[float], total: Sequence[float]) -> tuple[float, float]:
        recorded.extend([share, total])
        return no_bounds(share, total)

    intervals = parts(played(sums), BOTH, caught)
    # Of 12 in all the greatest is 4, and a fifth to all of a sequence is one's: one more like it moves the parts.
    for name, mean in (("a", 5 / 12), ("b", 7 / 12)):
        low, high = intervals[name]
        assert math.isclose(low, mean - (mean - (1 / 4 if name == "a" else 1 / 3)) * 4 / 16)
        assert math.isclose(high, mean + ((2 / 3 if name == "a" else 3 / 4) - mean) * 4 / 16)
    assert all(total > 0 for total in recorded[1]), "counts of 0 would be dropped, and the share there with them"


def test_a_whole_that_one_sequence_carries_has_parts_without_bounds() -> None:
    single = [100.0, *[0.1] * 20]
    sums = {NONE: [0.0] * 21, A: single, B: [0.1] * 21, AB: [a + 0.1 for a in single]}
    assert parts(played(sums), BOTH, bounds) == dict.fromkeys("ab", (-math.inf, math.inf))


@pytest.mark.parametrize("total", [None, 0.0, math.nan])
def test_without_a_whole_there_are_no_parts(total: float | None) -> None:
    game: dict[Mixture, float | None] = {NONE: 0.0, A: 1.0, B: 1.0, AB: total}
    intervals = parts(memo_of(("a", "b"), game.__getitem__), BOTH, no_bounds)
    assert all(part == (-math.inf, math.inf) for part in intervals.values())


def test_where_every_order_is_refused_there_are_no_parts() -> None:
    game: dict[Mixture, float | None] = {NONE: 0.0, A: None, B: None, AB: 1.0}
    assert parts(memo_of(("a", "b"), game.__getitem__), BOTH, no_bounds) == {}
