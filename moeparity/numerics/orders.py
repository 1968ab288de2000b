"""Summation orders: in which order the leaves 0..n-1 of a sum are added up. No torch here.

A `Tree` is either a leaf index or a tuple of subtrees that are added left to right. `native` has no tree: it
stands for whatever torch's own kernel does on the device at hand, and nothing is claimed about it.
"""

from __future__ import annotations

from collections.abc import Sequence

Tree = int | tuple["Tree", ...]

NATIVE = "native"
EXPLICIT = ("sequential", "reverse", "fold_hi", "fold_lo")
ORDERS = (NATIVE, *EXPLICIT)


def tree(order: str, leaves: int) -> Tree:
    """The summation tree of `order` over `leaves` leaves (at least 1).

    `sequential` adds left to right, `reverse` right to left. `fold_hi` adds leaf i of the first half to leaf i of the
    second half and repeats (descending `__shfl_xor` offsets), `fold_lo` adds neighbours first (ascending offsets);
    both pad to a power of two, and a padded leaf is left out instead of adding a zero (the same value; only the
    sign of an all -0 sum could tell them apart).
    """
    indices: Sequence[Tree] = range(leaves)
    if order == "sequential":
        return _chain(indices)
    if order == "reverse":
        return _chain(indices[::-1])
    if order not in EXPLICIT:
        raise ValueError(f"order {order!r} has no tree; orders with one are {EXPLICIT}")
    width = 1 << max(leaves - 1, 0).bit_length()
    level: list[Tree | None] = [*indices, *[None] * (width - leaves)]
    while len(level) > 1:
        half = len(level) // 2
        low, high = (level[:half], level[half:]) if order == "fold_hi" else (level[::2], level[1::2])
        level = [_pair(left, right) for left, right in zip(low, high, strict=True)]
    assert level[0] is not None
    return level[0]


def _chain(leaves: Sequence[Tree]) -> Tree:
    return leaves[0] if len(leaves) == 1 else tuple(leaves)


def _pair(left: Tree | None, right: Tree | None) -> Tree | None:
    if left is None or right is None:
        return left if right is None else right
    return (left, right)
