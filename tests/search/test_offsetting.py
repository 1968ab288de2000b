"""Pairs that offset each other: told by what both cost together, not by the signs of shares."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest

from moeparity.search.contrast import Interval, difference
from moeparity.search.memo import Memo, Mixture
from moeparity.search.offsetting import MOST, offsetting
from moeparity.search.tree import Cell
from tests.search.games import memo_of, no_bounds


def game_of(**values: float | None) -> dict[Mixture, float | None]:
    return {frozenset(): 0.0, **{frozenset(name): value for name, value in values.items()}}


def changes_of(memo: Memo) -> Mapping[Cell, Interval]:
    everything = memo.everything
    return {player: difference(everything - {player}, everything).interval(memo, no_bounds) for player in memo.players}


def pairs_in(game: Mapping[Mixture, float | None]) -> list[str]:
    memo = memo_of(tuple(sorted(frozenset().union(*game))), game.__getitem__)
    return [pair.first + pair.second for pair in offsetting(memo, changes_of(memo), no_bounds)]


@pytest.mark.parametrize("together", [0.0, 0.01, 0.2])
def test_two_that_cost_next_to_nothing_together_are_a_pair(together: float) -> None:
    assert pairs_in(game_of(a=1.0, b=1.5, ab=together)) == ["ab"]


@pytest.mark.parametrize("together", [0.26, 0.9, 2.5])
def test_two_that_stand_in_for_each_other_or_add_up_are_none(together: float) -> None:
    assert pairs_in(game_of(a=1.0, b=1.5, ab=together)) == []


def test_a_pair_is_found_beside_a_culprit() -> None:
    """The whole is the culprit's; each of the pair alone costs less than it."""
    game = game_of(a=0.3, b=0.4, c=1.0, ab=0.0, ac=1.3, bc=1.4, abc=1.0)
    assert pairs_in(game) == ["ab"]


def test_one_that_helps_a_culprit_is_no_pair_with_it() -> None:
    assert pairs_in(game_of(a=2.0, b=0.4, ab=1.0)) == []


def test_a_mixture_that_an_op_refuses_makes_no_pair() -> None:
    memo = memo_of(("a", "b", "c"), game_of(a=1.0, b=1.0, c=0.1, ab=None, ac=1.1, bc=1.1, abc=0.1).__getitem__)
    assert offsetting(memo, dict.fromkeys("abc", (0.5, 1.0)), no_bounds) == ()


def test_what_is_not_sure_is_no_pair() -> None:
    memo = memo_of(("a", "b"), game_of(a=1.0, b=1.5, ab=0.0).__getitem__)
    assert offsetting(memo, {"a": (-0.1, 2.0), "b": (0.5, 2.0)}, no_bounds) == ()
    assert memo.mixtures == 0
    assert offsetting(memo, {"a": (0.1, 2.0), "b": (0.5, 2.0)}, lambda *_: (-math.inf, math.inf)) == ()


def test_only_those_that_raise_it_most_are_looked_at() -> None:
    players = tuple(f"t{i}" for i in range(MOST + 3))
    memo = memo_of(players, lambda mixture: float(len(mixture)))
    changes: dict[Cell, Interval] = {player: (float(i + 1), math.inf) for i, player in enumerate(players)}
    assert offsetting(memo, changes, no_bounds) == ()
    assert memo.mixtures == MOST * (MOST - 1) // 2 + MOST
    assert not any(mixture & {"t0", "t1", "t2"} for mixture in memo.outcomes)
