"""Builds the tree of an order for a number of leaves."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from moeparity.numerics.orders.cascade import cascade
from moeparity.numerics.orders.types import (
    COMPENSATED,
    CONTRACTED,
    AnyTree,
    How,
    Level,
    Order,
    OrderError,
    Sum,
    children_of,
)

Values = Sequence[AnyTree]


def tree(order: Order, leaves: int, *, rooted: bool = False) -> AnyTree:
    """The tree of `order` over `leaves` leaves (at least 1).

    An accumulator that gets one value and starts from nothing is that value: no addition, no rounding. Only that of the
    last level exists in any case if it states a dtype or `rooted` is set, so that something can be put before it.
    Raises OrderError for a written-out tree with another number of leaves, ValueError for less than one leaf.
    """
    if leaves < 1:
        raise ValueError(f"a sum of {leaves} leaves has no tree; at least 1 expected")
    values: Values = range(leaves)
    for level in order.levels:
        inputs, values = values, _BUILD[level.name](values, level)
    (root,) = values
    final = order.levels[-1]
    adds = children_of(root) and not (len(inputs) == 1 and root is inputs[0])
    if adds or not (rooted or final.accumulate or isinstance(root, Sum)):
        return root
    return _shortest(Sum(children=(root,), accumulate=final.accumulate, fma=CONTRACTED in final.words))


def chain(children: Values, level: Level, *, how: How = "plain", width: int = 1) -> AnyTree:
    """The accumulator of a level over its children; None if all of them are padded zeros."""
    if all(child is None for child in children):
        return None
    zero = "zero" in level.words
    if len(children) == 1 and not zero and level.round is None:
        return children[0]
    compensated = [word for word in COMPENSATED if word in level.words]
    accumulator = Sum(
        children=tuple(children),
        accumulate=level.accumulate,
        round=level.round,
        zero=zero,
        fma=CONTRACTED in level.words,
        how=compensated[0] if compensated else how,
        width=width,
    )
    return _shortest(accumulator)


def _shortest(accumulator: Sum) -> AnyTree:
    """A sum without stated properties, as a tuple."""
    return accumulator.children if accumulator == Sum(children=accumulator.children) else accumulator


def _fold(values: Values, level: Level) -> Values:
    (width,) = level.numbers
    return [_fold_run(run, level) for run in _runs(values, width or len(values))]


def _fold_run(values: Values, level: Level) -> AnyTree:
    skip = "skip" in level.words
    pads = (1 << (len(values) - 1).bit_length()) - len(values)
    # While folding, a pad that is left out is the empty tuple, which is no tree.
    row: list[AnyTree] = [*values, *([()] * pads if skip else [None] * pads)]
    while len(row) > 1:
        half = len(row) // 2
        low, high = (row[:half], row[half:]) if level.name == "fold_hi" else (row[::2], row[1::2])
        row = [_pair(left, right, level) for left, right in zip(low, high, strict=True)]
    return _with_rounding(row[0], level)


def _pair(left: AnyTree, right: AnyTree, level: Level) -> AnyTree:
    if right == ():
        return left
    if left is None and right is None:
        return None
    return (left, right) if level.accumulate is None else Sum(children=(left, right), accumulate=level.accumulate)


def _with_rounding(value: AnyTree, level: Level) -> AnyTree:
    """`value` with the rounding that the level states for its results."""
    if level.round is None or value is None:
        return value
    return Sum(children=(value,), accumulate=level.accumulate, round=level.round)


def _halves(values: Values, level: Level) -> Values:
    (width,) = level.numbers
    halved: list[AnyTree] = []
    for run in _runs(values, width):
        half = -(-width // 2)
        pairs = [run[i::half] for i in range(min(half, len(run)))]
        sums = (pair[0] if len(pair) == 1 else _pair(pair[0], pair[1], level) for pair in pairs)
        halved += [_with_rounding(value, level) for value in sums]
    return halved


def _threads(values: Values, level: Level) -> Values:
    threads, vector = level.numbers if level.name == "threads" else (level.numbers[0], 1)
    runs = _runs(values, vector)
    return [chain(_turned(runs[i::threads], level), level) for i in range(threads)]


def _block(values: Values, level: Level) -> AnyTree:
    return chain(_turned(_runs(values, level.numbers[1]), level), level)


def _turned(runs: list[Values], level: Level) -> Values:
    """The values of the runs, one run after the other; `back`: each from its last value to its first."""
    turn = -1 if "back" in level.words else 1
    return [value for run in runs for value in run[::turn]]


def _lanes(values: Values, level: Level) -> Values:
    return [chain(values[i :: level.numbers[0]], level) for i in range(min(level.numbers[0], len(values)))]


def _rotate(values: Values, level: Level) -> Values:
    start, step = level.numbers
    return [values[(start + step * i) % len(values)] for i in range(len(values))]


def _shuffle(values: Values, level: Level) -> Values:
    order = list(values)
    random.Random(level.numbers[0]).shuffle(order)  # noqa: S311
    return order


def _explicit(values: Values, level: Level) -> Values:
    assert level.explicit is not None
    count = Order((level,)).leaves
    if count != len(values):
        raise OrderError(f"tree(...) adds up {count} values, and there are {len(values)}")

    inner = Level(name="tree", words=level.words, accumulate=level.accumulate)

    def subtree(node: AnyTree) -> AnyTree:
        if isinstance(node, int):
            return values[node]
        children = [subtree(child) for child in children_of(node)]
        return (
            chain(children, inner, how="fused", width=len(children))
            if isinstance(node, Sum)
            else chain(children, inner)
        )

    return [_with_rounding(subtree(level.explicit), level)]


def _runs(values: Values, size: int) -> list[Values]:
    return [values[i : i + size] for i in range(0, len(values), size)]


_BUILD: dict[str, Callable[[Values, Level], Values]] = {
    "sequential": lambda values, level: [chain(values, level)],
    "reverse": lambda values, level: [chain(values[::-1], level)],
    "fold_hi": _fold,
    "fold_lo": _fold,
    "halves": _halves,
    "threads": _threads,
    "lanes": _lanes,
    "blocks": lambda values, level: [_block(run, level) for run in _runs(values, level.numbers[0])],
    "cascade": lambda values, level: [_with_rounding(cascade(values, level), level)],
    "fused": lambda values, level: [chain(values, level, how="fused", width=level.numbers[0])],
    "rotate": lambda values, level: [chain(_rotate(values, level), level)],
    "tree": _explicit,
    "unordered": lambda values, level: [chain(_shuffle(values, level), level)],
}
