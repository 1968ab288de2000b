"""Finds, for a shape and its arithmetic, an order with all words and dtypes. No torch here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, product

from moeparity.numerics.orders import FORMS, AnyTree, Level, Order, OrderError, Sum, parse, tree
from moeparity.probe.compact import compact, explicit
from moeparity.probe.shape import Shape, clusters, numbers

BITS = {"bf16": 8, "fp16": 11, "fp32": 24, "fp64": 53}
NAMES = {bits: name for name, bits in BITS.items()} | {bits + 1: name for name, bits in BITS.items()}
_FORMS, _CHANGES, _WAYS = 30, 2, 60
"""How many orders of one shape are tried, in how many levels at once they are varied, and in how many ways each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What the probes saw of the additions of a shape.

    bits: for each merge, how many bits its result keeps; None if no value outside the merge can show it. contracted:
    leaves whose product is added unrounded; None if that can't be seen (exact products, or sums of single values).
    positive: whether a sum of only -0 is +0; None if no leaf can be -0.
    """

    bits: Sequence[int | None]
    contracted: frozenset[int] | None
    positive: bool | None


def usual_dtype(evidence: Evidence) -> str | None:
    """The dtype to which most additions round; None if none was seen, or if it is no known dtype."""
    counts = Counter(NAMES.get(bits) for bits in evidence.bits if bits is not None)
    return counts.most_common(1)[0][0] if counts else None


def expressions(shape: Shape, evidence: Evidence, accumulate: str) -> list[Order]:
    """Orders with this shape that agree with everything seen, the shortest first. Levels without a dtype of their own
    round to `accumulate`.

    Empty if the algebra has none; then `explicit(shape)` is the tree, and its additions are of some other kind.
    """
    facts = _Facts(shape, evidence, accumulate)
    orders = [order for form in compact(shape) for order in facts.fitted(form)]
    if not orders or orders[0].levels[0].name == "tree":
        further = (order for form in compact(shape, every=True)[:_FORMS] for order in facts.fitted(form))
        orders += [order for order in islice(further, 1) if order.levels[0].name != "tree"]
    return sorted(orders, key=lambda order: order.levels[0].name == "tree")


@dataclass(slots=True)
class _Walk:
    """What an order's tree predicts: bits of each set of leaves that is added up, contracted leaves, sign of zeros."""

    leaves: int
    accumulate: str
    bits: dict[int, int] = field(default_factory=dict)
    contracted: set[int] = field(default_factory=set)
    positive: bool = False

    def of(self, node: AnyTree) -> int:
        """The sum of the leaves' random numbers, by which a set of leaves is known."""
        if node is None:
            self.positive = True
            return 0
        if isinstance(node, int):
            return numbers(self.leaves)[node]
        node_sum = node if isinstance(node, Sum) else Sum(children=node)
        self.positive |= node_sum.zero
        total = self._chain(node_sum)
        if node_sum.round is not None and total in self.bits:
            self.bits[total] = min(self.bits[total], BITS[node_sum.round])
        return total

    def _chain(self, node_sum: Sum) -> int:
        width = (
            node_sum.width if node_sum.how == "fused" else len(node_sum.children) if node_sum.how == "neumaier" else 1
        )
        bits = BITS[node_sum.accumulate or self.accumulate]
        total = 0
        for i in range(0, len(node_sum.children), width):
            before = total
            children = node_sum.children[i : i + width]
            total = (before + sum(map(self.of, children))) % (1 << 128)
            if total != before and (before or sum(child is not None for child in children) > 1):
                self.bits[total] = bits + (node_sum.how == "kahan")
            if node_sum.fma and before and isinstance(node_sum.children[i], int):
                self.contracted.add(node_sum.children[i])  # type: ignore[arg-type]
        # Neumaier's compensation is added at the end, and is +0 if nothing was lost.
        self.positive |= node_sum.how == "neumaier" and len(node_sum.children) > 1
        if node_sum.how == "kahan" and total in self.bits:
            self.bits[total] = bits
        return total


class _Facts:
    def __init__(self, shape: Shape, evidence: Evidence, accumulate: str) -> None:
        self.shape, self.evidence, self.accumulate = shape, evidence, accumulate
        self.bits = {total: evidence.bits[k] for total, k in clusters(shape).items() if evidence.bits[k] is not None}

    def fitted(self, form: Order) -> Iterator[Order]:
        """The first assignment of words and dtypes to the levels of `form` that agrees with everything seen, if
        there is one.
        """
        contracted = self.evidence.contracted or frozenset()
        if contracted and form.levels[0].explicit is not None:
            form = explicit(self.shape, sorted(contracted))
        ways = [self._ways(i, form.levels) for i in range(len(form.levels))]
        choices = [way for way in product(*map(range, map(len, ways))) if sum(map(bool, way)) <= _CHANGES]
        for choice in sorted(choices, key=lambda way: sum(map(bool, way)))[:_WAYS]:
            levels = tuple(level[i] for level, i in zip(ways, choice, strict=True))
            order = _with_zeros(Order(levels), self.evidence.positive, self.shape.leaves)
            if order is not None and self._agrees(order):
                yield order
                return

    def _agrees(self, order: Order) -> bool:
        walk = _Walk(self.shape.leaves, self.accumulate)
        walk.of(tree(order, self.shape.leaves))
        if self.evidence.contracted is not None and walk.contracted != self.evidence.contracted:
            return False
        return all(walk.bits.get(total) == bits for total, bits in self.bits.items())

    def _ways(self, number: int, levels: Sequence[Level]) -> list[Level]:
        """A level with all words and dtypes that are left open, the unchanged one first."""
        level = levels[number]
        words = FORMS[level.name].words
        ways = [level]
        if number == 0 and self.evidence.contracted and "fma" in words and "fma" not in level.words:
            ways = [replace(level, words=tuple(sorted({*level.words, "fma"})))]
        precisions = {bits for bits in self.bits.values() if bits is not None}
        if any(bits - 1 in BITS.values() for bits in precisions) and "kahan" in words and not level.words:
            ways += [replace(level, words=("kahan",))]
        dtypes = sorted({NAMES[bits] for bits in precisions if bits in NAMES} - {self.accumulate})
        ways += [replace(way, accumulate=dtype) for way in ways for dtype in dtypes]
        return ways + [
            replace(way, round=dtype)
            for way in ways
            for dtype in dtypes
            if BITS[dtype] < BITS[way.accumulate or self.accumulate] and number + 1 < len(levels)
        ]


def _with_zeros(order: Order, positive: bool | None, leaves: int) -> Order | None:
    """The order with the sign of a sum of -0 as it was seen; unchanged if no word expresses that."""
    try:
        walk = _Walk(leaves, "fp32")
        walk.of(tree(order, leaves))
    except OrderError:
        return None
    if positive is None or walk.positive == positive:
        return order
    levels = list(order.levels)
    for i in reversed(range(len(levels))):
        words = FORMS[levels[i].name].words
        if positive and "zero" in words:
            levels[i] = replace(levels[i], words=tuple(sorted({*levels[i].words, "zero"})))
            break
        if not positive and "skip" in words:
            levels[i] = replace(levels[i], words=("skip",))
    signed = Order(tuple(levels))
    return parse(str(signed))
