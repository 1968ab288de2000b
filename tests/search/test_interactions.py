"""Pairs in both backgrounds."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

from moeparity.search.interactions import interactions
from moeparity.search.tree import Group
from tests.search.games import memo_of, names, no_bounds, random_game


def test_both_ends_against_the_definition() -> None:
    players = names(4)
    game = random_game(players, 3)
    memo = memo_of(players, game.__getitem__)
    pairs = interactions(memo, ["t0", Group("g", ("t1", "t2")), "t3"], no_bounds)
    assert [(pair.first, pair.second) for pair in pairs] == [("t0", "g"), ("t0", "t3"), ("g", "t3")]
    assert memo.effort.batches == 1

    def v(*on: str) -> Fraction:
        return Fraction(game[frozenset(on)])

    first = pairs[0]
    assert first.in_reference == v("t0", "t1", "t2") - v("t0") - v("t1", "t2") + v()
    assert first.in_candidate == v(*players) - v("t1", "t2", "t3") - v("t0", "t3") + v("t3")
    assert first.in_reference_interval == pytest.approx((float(first.in_reference),) * 2)


def test_an_additive_game_has_none_and_a_refusal_leaves_it_unknown() -> None:
    players = names(3)
    plain = interactions(memo_of(players, lambda c: float(len(c))), players, no_bounds)
    assert {pair.in_reference for pair in plain} == {pair.in_candidate for pair in plain} == {0}
    refusing = memo_of(players, lambda c: None if c == {"t0", "t1"} else float(len(c)))
    pairs = interactions(refusing, players, no_bounds)
    assert [pair.in_reference for pair in pairs] == [None, 0, 0]
    assert pairs[0].in_reference_interval == (-math.inf, math.inf)


def test_cells_are_disjoint() -> None:
    with pytest.raises(ValueError, match="share players"):
        interactions(memo_of(names(2), lambda _: 0.0), ["t0", Group("g", ("t0", "t1"))], no_bounds)
