"""NCCL's reduction trees over ranks: chains within nodes, a double binary tree across them.

Source imitated: NVIDIA/nccl at 5067397c26, `src/graph/trees.cc` (ncclGetBtree, ncclGetDtree) and
`src/graph/connect.cc` (ncclTopoPreset, connectTrees).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from moeparity.numerics.order_map import Part, chain
from moeparity.numerics.orders import AnyTree

Pattern = Literal["tree", "balanced_tree", "split_tree"]
"""Which rank of a node's chain receives from the two child nodes. tree: the first rank from both. balanced_tree: the
second rank from the first child, the first rank from the second child. split_tree: the second rank from both."""

Nodes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class NcclTree:
    """Each rank adds to its own value first that of the next rank of its node, then those from other nodes.

    Channels 0 to `double_after` - 1 use the first tree across nodes, as many after them the second, and so on.
    """

    nodes: Nodes | None = None
    pattern: Pattern = "balanced_tree"
    double_after: int = 1

    def __str__(self) -> str:
        if self.nodes is None:
            return "nccl_tree(one node)"
        nodes = list(map(list, self.nodes))
        return f"nccl_tree({nodes}, {self.pattern}, second tree after {self.double_after} channels)"

    def tree(self, part: Part, ranks: int) -> AnyTree:
        """The tree. ValueError if the nodes do not hold each rank once, or have one rank only and another pattern."""
        nodes: Nodes = (tuple(range(ranks)),) if self.nodes is None else self.nodes
        if sorted(rank for node in nodes for rank in node) != list(range(ranks)):
            raise ValueError(f"the nodes must hold ranks 0 to {ranks - 1} once each; got {nodes}")
        if len(nodes) > 1 and self.pattern != "tree" and min(map(len, nodes)) == 1:
            raise ValueError(f"pattern {self.pattern!r} needs two ranks a node; NCCL takes 'tree' there: {nodes}")
        second = part.channel // self.double_after % 2 == 1
        children = {node: dtree_children(len(nodes), node, second=second) for node in range(len(nodes))}
        inner = {child for pair in children.values() for child in pair}
        (root,) = set(children) - inner
        return self._value(nodes, children, root, 0)

    def _value(
        self, nodes: Nodes, children: dict[int, tuple[int | None, int | None]], node: int, place: int
    ) -> AnyTree:
        """The value that the rank at `place` in `node`'s chain sends up."""
        first, second = _receivers(self.pattern)
        terms: list[AnyTree] = [nodes[node][place]]
        if place + 1 < len(nodes[node]):
            terms.append(self._value(nodes, children, node, place + 1))
        for taker, child in ((first, children[node][0]), (second, children[node][1])):
            if place == taker and child is not None:
                terms.append(self._value(nodes, children, child, 0))
        return chain(terms)


def _receivers(pattern: Pattern) -> tuple[int, int]:
    return (0 if pattern == "tree" else 1), (1 if pattern == "split_tree" else 0)


def btree_children(count: int, index: int) -> tuple[int | None, int | None]:
    """Both children of `index` in NCCL's binary tree of `count` nodes, in which leaves and inner nodes alternate."""
    bit = 1
    while bit < count and not bit & index:
        bit <<= 1
    low = bit >> 1
    if index == 0:
        return None, (low if count > 1 else None)
    if low == 0:
        return None, None
    second = index + low
    while low and second >= count:
        second = index + low
        low >>= 1
    return index - (bit >> 1), (second if second < count else None)


def dtree_children(count: int, index: int, *, second: bool) -> tuple[int | None, int | None]:
    """Both children in the first tree or in the second, which is its mirror image, or shifted by one if `count` is
    odd.
    """
    if not second:
        return btree_children(count, index)
    if count % 2:
        left, right = btree_children(count, (index - 1) % count)
        return _shift(left, count), _shift(right, count)
    left, right = btree_children(count, count - 1 - index)
    return _mirror(left, count), _mirror(right, count)


def _shift(index: int | None, count: int) -> int | None:
    return None if index is None else (index + 1) % count


def _mirror(index: int | None, count: int) -> int | None:
    return None if index is None else count - 1 - index
