"""Shapes, the shortest orders that have them, and both kinds of probes on sums that are evaluated by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from moeparity.numerics.orders import parse, tree
from moeparity.probe.compact import compact, explicit
from moeparity.probe.reveal import Block, NoTree, reveal
from moeparity.probe.shape import Shape, same_shape, shape_of, visible
from moeparity.probe.triplets import Triplet, reveal_triplets
from tests.probe.planted import random_order, shape


@pytest.mark.parametrize(
    ("order", "n", "shortest"),
    [
        ("threads(896, vector=8) | fold_hi(32) | fold_hi", 7168, "blocks(8) | fold_hi(32) | fold_hi"),
        ("lanes(256) | fold_hi", 2048, "lanes(256) | fold_hi"),
        ("cascade(halves)", 2048, "cascade(halves)"),
        ("blocks(192) | sequential", 2048, "blocks(192) | sequential"),
        ("tree((0+1)+(2+3))", 4, "fold_lo"),
        ("fold_hi(6) | fold_lo", 60, "fold_hi(6) | fold_lo"),
    ],
)
def test_the_shortest_order_of_a_shape(order: str, n: int, shortest: str) -> None:
    assert str(compact(shape(order, n))[0]) == shortest


@pytest.mark.parametrize("seed", range(10))
def test_every_order_offered_has_the_shape_and_can_be_read(seed: int) -> None:
    shape_ = shape(*random_order(seed))
    for order in compact(shape_, every=True):
        assert parse(str(order)) == order
        assert same_shape(shape_of(tree(order, shape_.leaves), shape_.leaves), shape_)


def test_shapes_are_those_of_a_commutative_sum() -> None:
    assert same_shape(shape("tree((0+1)+(2+3))", 4), shape("tree((3+2)+(1+0))", 4))
    assert not same_shape(shape("tree((0+1)+(2+3))", 4), shape("tree((0+2)+(1+3))", 4))
    assert not same_shape(shape("tree([0+1+2]+3)", 4), shape("tree(0+1+2+3)", 4))


def test_a_contracted_leaf_is_written_second() -> None:
    assert str(explicit(shape("tree(0+1+2)", 3), [0, 2])) == "tree(1+0+2, fma)"


def asker(shape_: Shape, capacity: int) -> object:
    """Counts from the shape alone; beyond `capacity` they are rounded down to a power of two."""

    def ask(blocks: Sequence[Block]) -> list[list[int]]:
        answers = []
        for block in blocks:
            counts = []
            for minus in block.minus:
                units = [leaf for leaf in block.units if leaf not in {block.plus, minus}]
                ((count, _),) = visible(shape_, [(block.plus, minus)], units)
                counts.append(count if count <= capacity else 1 << (count.bit_length() - 1))
            answers.append(counts)
        return answers

    return ask


@pytest.mark.parametrize("capacity", [8, 1 << 20])
@pytest.mark.parametrize("order", ["sequential", "reverse", "lanes(8) | fold_lo", "blocks(16) | reverse", "cascade"])
def test_counts_that_round_give_the_same_tree(order: str, capacity: int) -> None:
    shape_ = shape(order, 90)
    assert same_shape(reveal(asker(shape_, capacity), 90, capacity), shape_)  # type: ignore[arg-type]


def test_counts_that_contradict_each_other_are_no_tree() -> None:
    def ask(blocks: Sequence[Block]) -> list[list[int]]:
        return [[(7 * minus) % 5 for minus in block.minus] for block in blocks]

    with pytest.raises(NoTree):
        reveal(ask, 20, 1 << 20)


@pytest.mark.parametrize("order", ["sequential", "fold_hi", "lanes(8) | fold_lo", "unordered(2)", "cascade"])
def test_triplets_give_the_tree(order: str) -> None:
    shape_ = shape(order, 150)

    def ask(triplets: Sequence[Triplet]) -> list[bool]:
        # i and j meet before either meets k where k is no part of what they hide.
        return [visible(shape_, [(i, j)], [k])[0][0] == 1 for k, i, j in triplets]

    assert same_shape(reveal_triplets(ask, 150), shape_)
