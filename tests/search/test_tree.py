"""Nested groups: their orders, and how many mixtures these pass through."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest

from moeparity.search.tree import Cell, Group, drawn_order, every_order, leaves, prefixes
from tests.search.games import halves, names

NESTED = Group("all", (Group("g", ("a", Group("h", ("b", "c")))), "d", Group("k", ("e", "f"))))


def kept_together(cell: Cell, order: tuple[str, ...]) -> bool:
    if isinstance(cell, str):
        return True
    at = sorted(order.index(leaf) for leaf in leaves(cell))
    return at == list(range(at[0], at[0] + len(at))) and all(kept_together(member, order) for member in cell.members)


def test_every_order_is_every_order_that_keeps_groups_together() -> None:
    orders = list(every_order(NESTED))
    permutations = {order for order in itertools.permutations("abcdef") if kept_together(NESTED, order)}
    assert len(orders) == len(permutations)
    assert set(orders) == permutations


@pytest.mark.parametrize("tree", ["x", Group("flat", names(6)), NESTED, Group("one", (Group("two", ("a",)),))])
def test_prefixes_counts_what_the_orders_pass_through(tree: Cell) -> None:
    mixtures = {frozenset(order[:i]) for order in every_order(tree) for i in range(len(order) + 1)}
    assert prefixes(tree) == len(mixtures)


def test_drawn_orders_are_equally_likely() -> None:
    tree = Group("all", ("a", Group("g", ("b", "c"))))
    draw = random.Random(0)  # noqa: S311
    counts = Counter(drawn_order(tree, draw) for _ in range(4000))
    assert set(counts) == set(every_order(tree))
    assert max(abs(count - 1000) for count in counts.values()) < 4 * (4000 * 0.25 * 0.75) ** 0.5


def test_halves() -> None:
    assert halves("x", ("a",)) == "a"
    assert halves("x", names(3)) == Group("x", (Group("t0 to t1", ("t0", "t1")), "t2"))


def test_groups_hold_each_player_once() -> None:
    with pytest.raises(ValueError, match="'g' holds"):
        Group("g", ("a", Group("h", ("a",))))
    with pytest.raises(ValueError, match="players expected"):
        Group("g", ())
