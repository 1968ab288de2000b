"""Orders that are told without a call: each can be read, and every tree of few values is among them."""

from __future__ import annotations

import pytest

from moeparity.numerics.orders import parse, tree
from moeparity.probe.likely import every_tree, likely_orders, shortest, tree_key


@pytest.mark.parametrize(("leaves", "count"), [(2, 1), (3, 3), (4, 15), (5, 105), (6, 945)])
def test_every_tree_of_few_values_comes_once(leaves: int, count: int) -> None:
    """(2n - 3)!! ways to add n values two by two."""
    keys = [tree_key(f"tree({text})", leaves) for text in every_tree(range(leaves))]
    assert (len(keys), len(set(keys))) == (count, count)


@pytest.mark.parametrize(("leaves", "products"), [(2, True), (4, True), (7, False), (24, True)])
def test_every_order_can_be_read_and_has_a_tree(leaves: int, products: bool) -> None:
    for text in likely_orders(leaves, products=products):
        order = parse(text)
        assert tree(order, leaves) is not None
        assert order.fma <= products


@pytest.mark.parametrize(
    "order", ["lanes(12) | reverse", "blocks(32, fma) | fold_lo", "threads(4, vector=2) | fold_hi"]
)
def test_orders_of_kernels_are_among_them(order: str) -> None:
    assert order in set(likely_orders(64, products=True))


def test_the_shortest_name_is_given() -> None:
    assert shortest("tree(0+2+(1+3))", 4) == "fold_hi"
    assert shortest("tree(0+1+2+(3+4))", 5) == "blocks(3) | sequential"
    assert shortest("sequential(kahan)", 5) == "sequential(kahan)"


def test_orders_with_one_tree_are_equal() -> None:
    assert tree_key("fold_hi", 4) == tree_key("lanes(2) | sequential", 4) != tree_key("fold_lo", 4)
    assert tree_key("sequential(fma)", 4) != tree_key("sequential", 4)
