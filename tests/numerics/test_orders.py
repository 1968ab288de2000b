"""Summation trees against trees written down by hand."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from moeparity.numerics.orders import EXPLICIT, NATIVE, Tree, tree

GOLDEN: dict[tuple[str, int], Tree] = {
    ("sequential", 1): 0,
    ("sequential", 2): (0, 1),
    ("sequential", 3): (0, 1, 2),
    ("sequential", 5): (0, 1, 2, 3, 4),
    ("sequential", 8): (0, 1, 2, 3, 4, 5, 6, 7),
    ("reverse", 1): 0,
    ("reverse", 2): (1, 0),
    ("reverse", 3): (2, 1, 0),
    ("reverse", 5): (4, 3, 2, 1, 0),
    ("reverse", 8): (7, 6, 5, 4, 3, 2, 1, 0),
    ("fold_hi", 1): 0,
    ("fold_hi", 2): (0, 1),
    ("fold_hi", 3): ((0, 2), 1),
    ("fold_hi", 5): (((0, 4), 2), (1, 3)),
    ("fold_hi", 8): (((0, 4), (2, 6)), ((1, 5), (3, 7))),
    ("fold_lo", 1): 0,
    ("fold_lo", 2): (0, 1),
    ("fold_lo", 3): ((0, 1), 2),
    ("fold_lo", 5): (((0, 1), (2, 3)), 4),
    ("fold_lo", 8): (((0, 1), (2, 3)), ((4, 5), (6, 7))),
}


@pytest.mark.parametrize(("order", "leaves"), GOLDEN)
def test_golden(order: str, leaves: int) -> None:
    assert tree(order, leaves) == GOLDEN[order, leaves]


def leaves_of(node: Tree) -> Iterator[int]:
    if isinstance(node, int):
        yield node
    else:
        for child in node:
            yield from leaves_of(child)


@pytest.mark.parametrize("order", EXPLICIT)
@pytest.mark.parametrize("leaves", range(1, 70))
def test_every_leaf_is_added_once(order: str, leaves: int) -> None:
    assert sorted(leaves_of(tree(order, leaves))) == list(range(leaves))


@pytest.mark.parametrize("order", [NATIVE, "ring"])
def test_an_order_without_a_tree_is_refused(order: str) -> None:
    with pytest.raises(ValueError, match=order):
        tree(order, 4)
