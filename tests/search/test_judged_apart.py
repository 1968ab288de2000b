"""What is no legal choice is judged apart from what is."""

from __future__ import annotations

import math

import pytest

from moeparity.search.judged_apart import judged_apart
from moeparity.search.memo import Mixture
from moeparity.search.roles import Role
from moeparity.search.tree import Group
from moeparity.search.waterfall import waterfall
from tests.search.games import memo_of, no_bounds, subsets

PLAYERS = ("a", "b", "eps", "tie")
SATURATED = {c: 1.0 + 0.01 * len(c) if c else 0.0 for c in subsets(PLAYERS)}
FORCED = {c: 0.01 * len(c & {"a", "b"}) + 0.4 * ("eps" in c) for c in subsets(PLAYERS)}
"""With the reference's routes roundings make next to nothing, and a wrong eps what it always makes."""


def roles(apart: Mixture) -> dict[str, Role]:
    memo = memo_of(PLAYERS, SATURATED.__getitem__)
    return {row.name: row.role for row in waterfall(memo, Group("all", PLAYERS), no_bounds, apart=apart).shares}


def test_what_is_apart_stands_in_for_nothing() -> None:
    assert set(roles(frozenset()).values()) == {Role.SATURATED}
    roles_of = roles(frozenset({"eps", "tie"}))
    assert roles_of["a"] is roles_of["b"] is Role.SATURATED
    assert Role.SATURATED not in (roles_of["eps"], roles_of["tie"])


@pytest.mark.parametrize("legal", ["a", "b"])
def test_one_legal_choice_beside_faults_is_interchangeable_with_nothing(legal: str) -> None:
    assert Role.SATURATED not in roles(frozenset(PLAYERS) - {legal}).values()


def test_what_is_left_without_them_free_and_forced() -> None:
    free, forced = memo_of(PLAYERS, SATURATED.__getitem__), memo_of(PLAYERS, FORCED.__getitem__)
    apart = judged_apart(frozenset({"eps", "tie"}), free, forced, no_bounds)
    assert apart is not None
    assert apart.toggles == ("eps", "tie")
    assert apart.without is free[frozenset("ab")]
    assert apart.change == pytest.approx((-0.02, -0.02))
    assert (apart.forced, apart.forced_without) == (forced[frozenset(PLAYERS)], forced[frozenset("ab")])
    assert apart.forced_change == pytest.approx((-0.4, -0.4))
    by_upper = apart.renamed(str.upper)
    assert by_upper.toggles == ("EPS", "TIE")
    alone = judged_apart(frozenset({"eps"}), free, None, no_bounds)
    assert alone is not None
    assert alone.forced is alone.forced_without is None
    assert alone.forced_change == (-math.inf, math.inf)


@pytest.mark.parametrize("names", [frozenset[str](), frozenset(PLAYERS)])
def test_nothing_is_apart_where_there_is_nobody_or_nobody_else(names: Mixture) -> None:
    assert judged_apart(names, memo_of(PLAYERS, SATURATED.__getitem__), None, no_bounds) is None
