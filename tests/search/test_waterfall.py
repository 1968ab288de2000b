"""Shares against the textbook's formulas, with refusals, drawn orders and roles."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moeparity.search.contrast import difference
from moeparity.search.memo import Memo, Mixture, Outcome
from moeparity.search.offsetting import MOST
from moeparity.search.roles import Role
from moeparity.search.tree import Cell, Group, leaves
from moeparity.search.waterfall import Share, Waterfall, waterfall
from tests.search.games import (
    by_orders,
    memo_of,
    names,
    no_bounds,
    outcome,
    owen,
    random_game,
    refusing_game,
    shapley,
    subsets,
)

NESTED = Group("all", (Group("g", ("t0", Group("h", ("t1", "t2")))), "t3", Group("k", ("t4",))))
SEEDS = st.integers(0, 2**32)


def shared(game: Mapping[Mixture, float | None], tree: Cell, pairs: int = 8, seed: int = 0) -> Waterfall:
    return waterfall(memo_of(leaves(tree), game.__getitem__), tree, no_bounds, pairs=pairs, seed=seed)


def shares(chart: Waterfall) -> dict[str, Fraction]:
    return {row.name: row.share for row in chart.shares}


@given(SEEDS, st.integers(1, 5))
@settings(max_examples=30)
def test_without_groups_a_share_is_the_shapley_value(seed: int, count: int) -> None:
    players = names(count)
    game = random_game(players, seed)
    chart = shared(game, Group("all", players))
    assert shares(chart) == shapley(players, game)
    assert chart.exact
    assert chart.orders == math.factorial(count)
    assert all(row.standard_error == 0 for row in chart.shares)


@given(SEEDS)
@settings(max_examples=30)
def test_with_groups_a_share_is_the_owen_value_and_parts_add_up(seed: int) -> None:
    game = random_game(leaves(NESTED), seed)
    chart = shared(game, NESTED)
    owen_values = owen(NESTED, game)
    assert {player: share for player, share in shares(chart).items() if player in owen_values} == owen_values
    assert [(row.name, row.depth) for row in chart.shares] == [
        ("g", 0), ("t0", 1), ("h", 1), ("t1", 2), ("t2", 2), ("t3", 0), ("k", 0), ("t4", 1)
    ]  # fmt: skip
    assert (
        sum(row.share for row in chart.shares if row.depth == 0)
        == chart.total
        == Fraction(game[frozenset(owen_values)])
    )
    groups = [row for row in chart.shares if row.divided]
    assert [row.name for row in groups] == ["g", "h", "k"]
    assert all(row.share == sum(owen_values[player] for player in row.players) for row in groups)


@given(SEEDS, st.sampled_from([0.1, 0.4]))
@settings(max_examples=40)
def test_orders_with_a_refused_mixture_are_left_out(seed: int, refusal_rate: float) -> None:
    players = names(4)
    game = refusing_game(players, seed, refusal_rate)
    chart = shared(game, Group("all", players))
    owen_values, orders = by_orders(Group("all", players), game)
    if orders:
        assert shares(chart) == owen_values
        assert (chart.orders, chart.left_out) == (orders, 24 - orders)
        assert sum(shares(chart).values()) == chart.total
    else:
        assert chart.shares == ()
    for row in chart.shares:
        assert (row.alone is None) == (game[frozenset({row.name})] is None)
        if row.alone is None or row.restored is None:
            assert row.role is Role.REFUSED


def test_a_group_that_is_refused_in_parts_stays_whole() -> None:
    players = names(4)
    tree = Group("all", (Group("g", players[:2]), Group("h", players[2:])))
    game = {c: None if len(c & {"t0", "t1"}) == 1 else float(len(c)) for c in subsets(players)}
    chart = shared(game, tree)
    assert [(row.name, row.share, row.divided) for row in chart.shares] == [
        ("g", 2, False), ("h", 2, True), ("t2", 1, False), ("t3", 1, False)
    ]  # fmt: skip
    assert chart.left_out == 0


@given(SEEDS, st.integers(1, 4))
@settings(max_examples=25)
def test_drawn_orders_add_up_to_the_whole_without_a_residual(seed: int, pairs: int) -> None:
    players = names(8)
    game = refusing_game(players, seed, 0.05)
    chart = shared(game, Group("all", players), pairs, seed)
    assert not chart.exact
    assert chart.orders + chart.left_out == 2 * pairs or not chart.shares
    if chart.shares:
        assert sum(shares(chart).values()) == chart.total
    raising = min(MOST, sum(share.change[0] > 0 for share in chart.shares))
    # A second one where pairs may offset each other.
    assert chart.effort.batches <= 1 + (raising > 1)
    assert chart.effort.mixtures <= 2 * pairs * 7 + 2 + 16 + raising * (raising - 1) // 2


def test_drawn_orders_agree_with_all_orders_within_their_standard_error() -> None:
    players = names(8)
    tree = Group("all", (Group("g", players[:5]), *players[5:]))
    misses = []
    for seed in range(20):
        game = random_game(players, seed)
        owen_values = owen(tree, game)
        chart = shared(game, tree, pairs=40, seed=seed)
        assert not chart.exact
        misses += [
            float(row.share - owen_values[row.name]) / row.standard_error
            for row in chart.shares
            if row.name in owen_values
        ]
    # 160 ratios that should be about standard normal, those of one game dependent.
    assert 0.8 < math.sqrt(sum(miss**2 for miss in misses) / len(misses)) < 1.2
    assert max(map(abs, misses)) < 4.5


def test_of_an_additive_game_each_order_tells_all() -> None:
    players = names(9)
    game = {c: float(sum(2 ** int(name[1:]) for name in c)) for c in subsets(players)}
    chart = shared(game, Group("all", players), pairs=2)
    assert shares(chart) == {name: 2 ** int(name[1:]) for name in players}
    assert all(row.standard_error == 0 for row in chart.shares)


def test_an_order_and_its_reverse_tell_all_where_only_pairs_interact() -> None:
    players = names(8)
    game = {c: float(sum(int(a[1:]) * int(b[1:]) for a in c for b in c if a < b)) for c in subsets(players)}
    chart = shared(game, Group("all", players), pairs=1)
    assert not chart.exact
    assert shares(chart) == shapley(players, game)


def test_the_standard_error_of_two_pairs_is_half_their_distance() -> None:
    players = names(8)
    game = random_game(players, 5)
    two_pairs, one_pair = (shared(game, Group("all", players), pairs=pairs) for pairs in (2, 1))
    for share, single in zip(two_pairs.shares, one_pair.shares, strict=True):
        assert share.standard_error == pytest.approx(abs(float(single.share - share.share)), rel=1e-9)
        assert share.standard_error > 0


def test_one_pair_has_no_standard_error() -> None:
    players = names(8)
    chart = shared(random_game(players, 1), Group("all", players), pairs=1)
    assert all(row.standard_error == math.inf for row in chart.shares)


def test_nothing_is_shared_out_where_the_candidate_is_refused_or_not_finite() -> None:
    for value in (None, math.nan, math.inf):
        game = {c: float(len(c)) for c in subsets(names(2))} | {frozenset(names(2)): value}
        chart = shared(game, Group("all", names(2)))
        assert chart.total is None
        assert chart.shares == ()


def test_one_player_is_a_tree() -> None:
    chart = shared({frozenset(): 0.0, frozenset({"a"}): 3.0}, "a")
    assert [(row.name, row.share, row.role) for row in chart.shares] == [("a", 3, Role.CULPRIT)]


def test_the_tree_holds_the_players() -> None:
    with pytest.raises(ValueError, match="all players expected"):
        waterfall(memo_of(names(3), lambda _: 0.0), Group("all", names(2)), no_bounds)
    with pytest.raises(ValueError, match="pairs is 0"):
        waterfall(memo_of(names(2), lambda _: 0.0), Group("all", names(2)), no_bounds, pairs=0)


def roles(game: Mapping[Mixture, float | None]) -> dict[str, Role]:
    players = tuple(sorted(frozenset().union(*game)))
    return {row.name: row.role for row in shared(game, Group("all", players)).shares}


def table(**values: float) -> dict[Mixture, float | None]:
    return {frozenset(): 0.0, **{frozenset(name): value for name, value in values.items()}}


def test_roles() -> None:
    assert roles(table(a=1.0, b=0.0, ab=1.0)) == {"a": Role.CULPRIT, "b": Role.NO_EFFECT}
    assert roles(table(a=1.0, b=1.0, ab=1.0)) == {"a": Role.MASKED, "b": Role.MASKED}
    assert roles(table(a=0.9, b=1.1, ab=1.0)) == {"a": Role.SATURATED, "b": Role.SATURATED}
    assert roles(table(a=1.25, b=0.8, ab=1.0)) == {"a": Role.SATURATED, "b": Role.SATURATED}
    assert roles(table(a=1.3, b=0.8, ab=1.0)) == {"a": Role.CULPRIT, "b": Role.OFFSETS}
    assert roles(table(a=0.9, b=0.8, ab=1.0)) == {"a": Role.SATURATED, "b": Role.SATURATED}
    assert roles(table(a=0.8, b=0.7, ab=1.2)) == {"a": Role.SATURATED, "b": Role.SATURATED}
    assert roles(table(a=0.8, b=0.5, ab=1.0)) == {"a": Role.SATURATED, "b": Role.SATURATED}
    assert roles(table(a=0.8, b=0.4, ab=1.0)) == {"a": Role.CULPRIT, "b": Role.CULPRIT}
    assert roles(table(a=2.0, b=0.4, ab=1.0)) == {"a": Role.CULPRIT, "b": Role.HELPS}
    assert roles(table(a=1.01, b=0.01, ab=1.0)) == {"a": Role.CULPRIT, "b": Role.NEGLIGIBLE}
    assert roles(table(a=1.0, b=0.05, ab=1.05)) == {"a": Role.CULPRIT, "b": Role.CONTRIBUTES}


def test_what_nothing_stands_in_for_is_not_saturated() -> None:
    # All others together make half of it, but none of them alone: `a` is still the one to restore.
    game = {frozenset(c): v for c, v in {"": 0.0, "a": 0.8, "b": 0.3, "c": 0.3}.items()}
    game |= {frozenset(c): v for c, v in {"ab": 0.9, "ac": 0.9, "bc": 0.55, "abc": 1.0}.items()}
    assert roles(game) == {"a": Role.CULPRIT, "b": Role.CULPRIT, "c": Role.CULPRIT}


def test_fixing_one_of_two_real_causes_can_raise_the_divergence() -> None:
    # Measured on one prompt of a small MoE, in 1e-4 nats: eager against sdpa attention, fp32 against bf16 router.
    chart = shared(table(a=2.0, r=1.1, ar=1.9), Group("all", ("a", "r")))
    assert [float(row.share) for row in chart.shares] == pytest.approx([1.4, 0.5])
    assert [row.role for row in chart.shares] == [Role.SATURATED, Role.SATURATED]
    assert row(chart, "r").change[0] > 0


def test_a_toggle_that_acts_only_in_company_has_an_effect() -> None:
    # c acts neither alone nor when restored, only beside a without b.
    game = table(a=1.0, b=0.5, ab=1.5, c=0.0, ac=1.25, bc=0.5, abc=1.5)
    assert roles(game)["c"] is Role.CONTRIBUTES


def test_too_few_sequences_leave_every_share_undecided() -> None:
    game = table(a=1.0, b=0.2, ab=1.2)
    chart = waterfall(memo_of(("a", "b"), game.__getitem__), Group("all", ("a", "b")), lambda *_: (-math.inf, math.inf))
    assert [row.role for row in chart.shares] == [Role.UNDECIDED, Role.UNDECIDED]


def row(chart: Waterfall, name: str) -> Share:
    return next(row for row in chart.shares if row.name == name)


def test_intervals_see_the_paired_sums_of_each_sequence() -> None:
    sums = {"": (0.0, 0.0), "a": (1.0, 3.0), "b": (2.0, 2.0), "ab": (4.0, 8.0)}
    recorded: list[tuple[float, ...]] = []

    def evaluate(mixtures: Sequence[Mixture]) -> dict[Mixture, Outcome | None]:
        return {c: outcome(sum(sums[key]) / 2, sums=sums[key]) for c in mixtures for key in ["".join(sorted(c))]}

    def bounds(total: Sequence[float], tokens: Sequence[float]) -> tuple[float, float]:
        assert tuple(tokens) == (1.0, 1.0)
        recorded.append(tuple(total))
        return min(total), max(total)

    chart = waterfall(Memo(("a", "b"), evaluate), Group("all", ("a", "b")), bounds)
    # Half of v(a) - v() and half of v(ab) - v(b), sequence by sequence.
    assert row(chart, "a").interval == (1.5, 4.5)
    assert row(chart, "a").change == (-6.0, -2.0)
    assert row(chart, "b").interval == (2.5, 3.5)
    assert all(len(total) == 2 for total in recorded)


def test_equal_outcomes_cancel_to_zero_and_not_to_rounding() -> None:
    game = table(a=0.1, b=0.0, ab=0.1)
    chart = shared(game, Group("all", ("a", "b")))
    assert row(chart, "b").interval == (0.0, 0.0)
    memo = memo_of(("a",), game.__getitem__)
    assert difference(frozenset("a"), frozenset("a")).interval(memo, no_bounds) == (0.0, 0.0)
