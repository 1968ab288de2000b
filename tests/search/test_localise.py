"""Layers taken apart where the divergence is."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from moeparity.search.tree import Group
from moeparity.search.waterfall import localise, waterfall
from tests.search.games import halves, memo_of, names, no_bounds, random_game, refusing_game

LAYERS = names(32)
TREE = halves("layers", LAYERS)


def test_two_layers_out_of_many_are_followed_down_to_themselves() -> None:
    cost = {"t5": 3.0, "t20": 2.0}
    memo = memo_of(LAYERS, lambda on: sum(cost.get(layer, 0.001) for layer in on))
    chart = localise(memo, TREE, no_bounds, pairs=2)
    single = {row.name: float(row.share) for row in chart.shares if len(row.players) == 1}
    assert single.keys() == {"t4", "t5", "t20", "t21"}
    assert single["t5"] > 2.99
    assert single["t20"] > 1.99
    assert sum(row.share for row in chart.shares if not row.divided) == chart.total
    assert sum(row.share for row in chart.shares if row.depth == 0) == chart.total
    # One batch for the ends, one for each of five levels.
    assert chart.effort.batches == 6
    everywhere = waterfall(memo_of(LAYERS, lambda on: float(len(on))), TREE, no_bounds, pairs=2)
    assert chart.effort.mixtures < everywhere.effort.mixtures / 2


@given(st.integers(0, 2**32), st.integers(2, 9))
@settings(max_examples=25)
def test_opened_everywhere_it_is_the_waterfall(seed: int, count: int) -> None:
    players = names(count)
    game = random_game(players, seed)
    tree = halves("all", players)
    lazily = localise(memo_of(players, game.__getitem__), tree, no_bounds, worth=0.0, pairs=3)
    at_once = waterfall(memo_of(players, game.__getitem__), tree, no_bounds, pairs=3)
    assert lazily.shares == at_once.shares
    assert lazily.orders == at_once.orders


@given(st.integers(0, 2**32), st.floats(0, 1))
@settings(max_examples=40)
def test_parts_add_up_whatever_is_opened_or_refused(seed: int, worth: float) -> None:
    players = names(8)
    game = refusing_game(players, seed, 0.1)
    chart = localise(memo_of(players, game.__getitem__), halves("all", players), no_bounds, worth=worth)
    if chart.shares:
        assert sum(row.share for row in chart.shares if not row.divided) == chart.total
        assert chart.total == Fraction(game[frozenset(players)] or 0.0)


def test_a_budget_is_kept_and_goes_to_the_largest_share() -> None:
    cost = {"t5": 3.0, "t20": 2.0}
    memo = memo_of(LAYERS, lambda on: sum(cost.get(layer, 0.001) for layer in on))
    chart = localise(memo, TREE, no_bounds, pairs=2, budget=46)
    assert chart.effort.mixtures <= 46
    open_groups = [row.players for row in chart.shares if row.divided]
    assert ("t4", "t5") in open_groups
    assert ("t20", "t21") not in open_groups


def test_what_is_refused_inside_stays_whole() -> None:
    tree = Group("all", (Group("g", ("a", "b")), "c"))
    memo = memo_of(("a", "b", "c"), lambda on: None if len(on & {"a", "b"}) == 1 else float(len(on)))
    chart = localise(memo, tree, no_bounds)
    assert [(row.name, row.share, row.divided) for row in chart.shares] == [("g", 2, False), ("c", 1, False)]


def test_a_refused_candidate_has_no_shares() -> None:
    chart = localise(memo_of(LAYERS, lambda on: None if on else 0.0), TREE, no_bounds)
    assert chart.total is None
    assert chart.shares == ()
    assert chart.effort.mixtures == 2
