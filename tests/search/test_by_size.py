"""The best of each number of restored players, against looking at all subsets."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moeparity.search.by_size import by_size
from moeparity.search.memo import Memo, Mixture, Outcome
from moeparity.search.tree import Group
from moeparity.search.waterfall import localise, waterfall
from tests.search.games import memo_of, names, outcome, random_game, refusing_game, subsets


def bounds(sums: Sequence[float], tokens: Sequence[float]) -> tuple[float, float]:
    mean = math.fsum(sums) / math.fsum(tokens)
    return mean - 1, mean + 1


@given(st.integers(0, 2**32), st.integers(2, 5), st.sampled_from([0.0, 0.3]))
@settings(max_examples=40)
def test_where_all_subsets_were_run_each_size_has_the_one_that_leaves_least(
    seed: int, count: int, refusal_rate: float
) -> None:
    players = names(count)
    game = {m: v if v is None else abs(v) for m, v in refusing_game(players, seed, refusal_rate).items()}
    memo = memo_of(players, game.__getitem__)
    shares = waterfall(memo, Group("all", players), bounds)
    memo.ask(subsets(players))
    sets = by_size(memo, shares, bounds)
    whole = game[frozenset(players)]
    assert whole
    for size in range(1, count + 1):
        outcomes = [game[m] for m in subsets(players) if len(m) == count - size]
        values = [value for value in outcomes if value is not None]
        rows = [row for row in sets if len(row.players) == size]
        assert len(rows) == bool(values)
        for row in rows:
            assert row.outcome.value == min(values) == game[frozenset(players) - frozenset(row.players)]
            assert row.gone == pytest.approx(1 - min(values) / whole, abs=1e-12)
            assert row.best


def test_without_all_subsets_those_with_the_largest_shares_are_run() -> None:
    players = names(12)
    weight = {player: 2.0**-number for number, player in enumerate(reversed(players))}
    memo = memo_of(players, lambda mixture: sum(weight[player] for player in mixture))
    shares = localise(memo, Group("all", players), bounds)
    before = set(memo.outcomes)
    sets = by_size(memo, shares, bounds)
    # The last player weighs most; sets of 9 and 10 are not run for themselves, one of 11 leaves each player alone.
    assert [row.players for row in sets if len(row.players) <= 8] == [players[-size:] for size in range(1, 9)]
    assert sets[-1].players == players
    assert sets[-1].gone == 1
    by_number = {len(row.players): row.best for row in sets}
    assert by_number[1], "each alone was restored for its row of shares"
    assert not by_number[4]
    assert by_number[12]
    assert len(set(memo.outcomes) - before) <= 9


def test_members_of_a_group_that_stays_whole_count_with_equal_parts() -> None:
    players = names(4)
    worth = {"t0": 0.01, "t1": 0.01, "t2": 4.0, "t3": 2.0}
    memo = memo_of(players, lambda mixture: sum(worth[player] for player in mixture))
    tree = Group("all", (Group("first", ("t0", "t1")), Group("second", ("t2", "t3"))))
    shares = localise(memo, tree, bounds)
    assert [share.name for share in shares.shares] == ["first", "second", "t2", "t3"]
    assert [row.players for row in by_size(memo, shares, bounds)][:2] == [("t2",), ("t2", "t3")]


@pytest.mark.parametrize("value", [0.0, math.nan, math.inf, None])
def test_without_a_divergence_to_take_away_there_are_no_sets(value: float | None) -> None:
    players = names(2)

    def evaluate(mixtures: Sequence[Mixture]) -> dict[Mixture, Outcome | None]:
        whole = None if value is None else outcome(value)
        return {mixture: whole if len(mixture) == 2 else outcome(0.0) for mixture in mixtures}

    memo = Memo(players, evaluate)
    assert by_size(memo, waterfall(memo, Group("all", players), bounds), bounds) == ()


def test_a_set_that_makes_it_worse_has_less_than_nothing_gone() -> None:
    players = names(2)
    game = {**random_game(players, 1), frozenset(players): 1.0, frozenset({"t0"}): 3.0, frozenset({"t1"}): 2.0}
    memo = memo_of(players, game.__getitem__)
    sets = by_size(memo, waterfall(memo, Group("all", players), bounds), bounds)
    assert [(row.players, row.gone) for row in sets] == [(("t0",), -1.0), (("t0", "t1"), 1.0)]
