"""Planted orders are found again: the tree exactly, its arithmetic, and its sums bit for bit."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moeparity.numerics.orders import parse, tree
from moeparity.probe.shape import same_shape, shape_of
from tests.probe.planted import drawn_order, planted, probed_tree, random_order, shape


def recovered(order: str, n: int, **how: str) -> str:
    """The order found, of which the tree and all replayed sums are the planted one's."""
    tree_ = probed_tree(order, n, **how)
    assert tree_.order is not None, tree_.reason
    assert same_shape(shape_of(tree(tree_.order, n), n), shape(order, n))
    assert tree_.equal == tree_.replayed > 0, str(tree_)
    return str(tree_.order)


def assert_found_in_no_longer_a_form(order: str, n: int) -> None:
    text = recovered(order, n)
    if "unordered" not in order:
        assert len(parse(text).levels) <= len(parse(order).levels)
        assert not text.startswith("tree(")


@pytest.mark.parametrize("seed", range(32))
def test_random_orders_are_found_exactly_and_in_no_longer_a_form(seed: int) -> None:
    assert_found_in_no_longer_a_form(*random_order(seed))


@given(st.randoms(use_true_random=False), st.integers(2, 255))
@settings(max_examples=10, derandomize=True)
def test_orders_of_any_size_are_found(draw: random.Random, n: int) -> None:
    assert_found_in_no_longer_a_form(*drawn_order(draw, n))


@pytest.mark.parametrize(
    ("order", "n"),
    [
        ("lanes(512) | fold_hi", 2048),
        ("threads(16, vector=8) | fold_hi(8) | sequential", 512),
        ("cascade", 700),
        ("blocks(192) | sequential", 600),
        ("unordered(7)", 257),
    ],
)
def test_large_sums(order: str, n: int) -> None:
    text = recovered(order, n)
    assert text == order or "unordered" in order


@pytest.mark.parametrize(
    "order",
    [
        "sequential(fma)",
        "sequential",
        "reverse(fma)",
        "lanes(4, fma) | fold_hi",
        "lanes(4) | fold_hi",
        "blocks(8, fma) | reverse",
        "tree((0+2)+(3+1)+4, fma)",
    ],
)
def test_contraction_of_products_is_seen(order: str) -> None:
    n = 5 if order.startswith("tree") else 24
    tree_ = probed_tree(order, n, kind="linear")
    assert tree_.products == ("contracted" if "fma" in order else "rounded")
    assert tree_.equal == tree_.replayed == 512
    assert tree_.order is not None
    assert tree_.order.fma == ("fma" in order)
    if "reverse" in order:
        assert recovered(order, n, kind="dot") == str(tree_.order)


@pytest.mark.parametrize(
    ("order", "accumulate", "dtype"),
    [
        ("sequential", "bf16", "bf16"),
        ("lanes(8) | fold_hi", "fp32", "bf16"),
        ("lanes(8) | fold_hi", "bf16", "bf16"),
        ("sequential", "fp64", "fp32"),
        ("cascade(halves)", "fp32", "fp16"),
        ("reverse", "fp16", "fp16"),
        ("sequential(kahan)", "bf16", "bf16"),
    ],
)
def test_what_additions_round_to(order: str, accumulate: str, dtype: str) -> None:
    tree_ = probed_tree(order, 150, accumulate=accumulate, dtype=dtype)
    assert (str(tree_.order), tree_.accumulate, tree_.output) == (order, accumulate, dtype)
    assert tree_.equal == tree_.replayed == 512


@pytest.mark.parametrize(
    "order",
    [
        "blocks(16, round=bf16) | sequential",
        "blocks(16) | sequential(accumulate=bf16)",
        "lanes(4, kahan) | fold_hi",
        "sequential(neumaier)",
        "reverse(neumaier)",
        "lanes(4, neumaier) | reverse",
        "fold_lo(4, round=fp16) | fold_lo",
    ],
)
def test_roundings_and_compensation_of_levels(order: str) -> None:
    n = 64
    tree_ = probed_tree(order, n)
    assert tree_.order is not None
    assert tree_.equal == tree_.replayed == 512
    assert [level.round for level in tree_.order.levels] == [level.round for level in parse(order).levels]
    assert [level.accumulate for level in tree_.order.levels] == [level.accumulate for level in parse(order).levels]
    assert {"kahan", "neumaier"} & {word for level in tree_.order.levels for word in level.words} == (
        {"kahan", "neumaier"} & {word for level in parse(order).levels for word in level.words}
    )


def test_a_level_in_a_wider_dtype() -> None:
    assert recovered("blocks(8, accumulate=bf16) | sequential", 100, accumulate="fp32") in {
        "blocks(8, accumulate=bf16) | sequential",
        "blocks(8) | sequential(accumulate=fp32)",
    }


def test_what_replays_is_what_was_planted_and_nothing_near_it() -> None:
    """Two leaves swapped in a long chain: 99 % of sums do not show it, and the tree does."""
    n = 256
    order = f"tree({'+'.join(map(str, [0, 1, 2, 200, *range(3, 200), *range(201, n)]))})"
    tree_ = probed_tree(order, n)
    assert tree_.order is not None
    assert same_shape(shape_of(tree(tree_.order, n), n), shape(order, n))
    assert not same_shape(shape_of(tree(tree_.order, n), n), shape("sequential", n))
    assert planted(order).name == order
