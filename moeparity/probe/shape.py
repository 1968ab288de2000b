"""Shapes: what an order probe can see of a summation tree, that is, which values are merged where. No torch here.

Addition is commutative, so the children of a merge have no order; padded zeros leave no trace. Two orders with the same
shape give the same bits if their arithmetic (dtypes, contraction, zeros) agrees.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache

from moeparity.numerics.orders import AnyTree, Sum

_BITS = 128


@dataclass(frozen=True, slots=True)
class Shape:
    """Merges of `leaves` values, the earliest first: merge k joins the listed values and makes value `leaves` + k.

    A merge of two values is an addition; one of more adds all of them at once (a fused adder). Missing values
    (`absent`: padded lanes of a level) are in no merge.
    """

    leaves: int
    merges: tuple[tuple[int, ...], ...]
    absent: frozenset[int] = frozenset()

    @property
    def present(self) -> int:
        """How many values are added up."""
        return self.leaves - len(self.absent)


def shape_of(tree: AnyTree, leaves: int, absent: Collection[int] = ()) -> Shape:
    """The shape of a tree over `leaves` leaves, of which those in `absent` count as padded zeros."""
    merges: list[tuple[int, ...]] = []

    def merged(values: list[int]) -> int:
        if len(values) == 1:
            return values[0]
        merges.append(tuple(values))
        return leaves + len(merges) - 1

    def of(node: AnyTree) -> int | None:
        if node is None or isinstance(node, int):
            return None if node in absent else node
        children = node.children if isinstance(node, Sum) else node
        algorithm = node.how if isinstance(node, Sum) else "plain"
        # Neumaier's sum loses nothing on the way, as if it added all at once.
        width = len(children) if algorithm == "neumaier" else 1
        if isinstance(node, Sum) and algorithm == "fused":
            width = node.width
        total: int | None = None
        for i in range(0, len(children), width):
            terms = [value for value in map(of, children[i : i + width]) if value is not None]
            start = [] if total is None else [total]
            total = merged([*start, *terms]) if start or terms else None
        return total

    of(tree)
    return Shape(leaves, tuple(merges), frozenset(absent))


Clusters = dict[int, int]


def clusters(shape: Shape) -> Clusters:
    """Each set of leaves that is added up before another value is added -> the merge that completes it.

    A set is identified by the sum of its leaves' random 128-bit numbers. The sets determine the shape.
    """
    codes, leaves = numbers(shape.leaves), shape.leaves
    sums: list[int] = []
    for merge in shape.merges:
        total = sum(codes[value] if value < leaves else sums[value - leaves] for value in merge)
        sums.append(total % (1 << _BITS))
    return {total: k for k, total in enumerate(sums)}


@lru_cache(maxsize=16)
def numbers(leaves: int) -> tuple[int, ...]:
    """The random number of each leaf; the same for the leaves of a shorter sum."""
    draw = random.Random(1)  # noqa: S311
    return tuple(draw.getrandbits(_BITS) for _ in range(leaves))


def same_shape(a: Shape, b: Shape) -> bool:
    """Whether two shapes are equal."""
    return (a.leaves, len(a.merges), a.absent) == (b.leaves, len(b.merges), b.absent) and (
        clusters(a).keys() == clusters(b).keys()
    )


def parents(shape: Shape) -> list[int]:
    """For each value, the merge that takes it; -1 for the whole sum."""
    merge_of = [-1] * (shape.leaves + len(shape.merges))
    for k, merge in enumerate(shape.merges):
        for value in merge:
            merge_of[value] = k
    return merge_of


def members(shape: Shape) -> tuple[list[int], list[int]]:
    """For each value, how many leaves it contains, and the lowest of them."""
    sizes = [1] * shape.leaves
    lowest = list(range(shape.leaves))
    for merge in shape.merges:
        sizes.append(sum(sizes[value] for value in merge))
        lowest.append(min(lowest[value] for value in merge))
    return sizes, lowest


def tree_of(shape: Shape, contracted: Collection[int] = ()) -> AnyTree:
    """The shape as a tree: of an addition's children the larger comes first, so that there are few brackets; else the
    one with the lower leaf.

    Of two leaves, one that is `contracted` (its product is added with one rounding) comes second.
    """
    sizes, lowest = members(shape)
    nodes: list[AnyTree] = list(range(shape.leaves))
    chains: dict[int, list[AnyTree]] = {}

    def completed(value: int) -> AnyTree:
        return tuple(chains.pop(value)) if value in chains else nodes[value]

    for k, merge in enumerate(shape.merges):
        order = sorted(merge, key=lambda value: (-sizes[value], value in contracted, lowest[value]))
        if len(merge) > 2:
            nodes.append(Sum(children=tuple(map(completed, order)), how="fused", width=len(merge)))
            continue
        first, second = order
        smaller = completed(second)
        nodes.append(None)
        chain = chains.pop(first) if first in chains else [nodes[first]]
        chain.append(smaller)
        chains[shape.leaves + k] = chain
    return completed(shape.leaves + len(shape.merges) - 1)


def visible(shape: Shape, pairs: Sequence[Sequence[int]], units: Collection[int]) -> list[tuple[int, int]]:
    """For each pair of leaves with +M and -M, how many of `units` are left.

    The two numbers differ if the pair meets in a fused adder: one for an adder that adds exactly, one for an adder that
    swamps all its terms.
    """
    taken_by = parents(shape)
    unit_leaves = frozenset(units)
    unit_counts = [int(leaf in unit_leaves) for leaf in range(shape.leaves)]
    for merge in shape.merges:
        unit_counts.append(sum(unit_counts[value] for value in merge))
    counts: list[tuple[int, int]] = []
    for a, b in pairs:
        above: dict[int, int] = {}
        value = a
        while taken_by[value] >= 0:
            above[taken_by[value]] = value
            value = shape.leaves + taken_by[value]
        value = b
        while taken_by[value] not in above:
            value = shape.leaves + taken_by[value]
        meeting = taken_by[value]
        exact = len(unit_leaves) - unit_counts[above[meeting]] - unit_counts[value]
        counts.append((exact, len(unit_leaves) - unit_counts[shape.leaves + meeting]))
    return counts
