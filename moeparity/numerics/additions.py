"""A tree as a list of steps over whole slices, which the executor of sums runs. No torch here.

Additions of values in the same places that can be made at the same time form one step: a fold over 4096 leaves is 12
steps. Which additions share a step changes no bit, since each addition stays the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Literal, NamedTuple

from moeparity.numerics.orders import AnyTree, Order, Sum, tree

AdditionKind = Literal["add", "fma", "fused", "kahan", "neumaier", "kahan_total", "neumaier_total", "round"]

LEAVES, ZERO, START = -1, -2, -3
"""Sources that are not registers: the leaves, a padded +0, and the value from which the root's accumulator starts."""

Index = slice | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Operand:
    """Values at `index` of a register or of LEAVES; ZERO and START have only one."""

    source: int
    index: Index


@dataclass(frozen=True, slots=True, kw_only=True)
class AdditionStep:
    """One step, which makes the next register of `width` values; value i comes from value i of each operand.

    accumulate: the dtype to which it rounds (None: the executor's). last: registers that nothing reads after this step.
    """

    kind: AdditionKind
    accumulate: str | None
    operands: tuple[Operand, ...]
    width: int
    last: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Steps, the operand that is the sum after them, and its dtype (None: the executor's)."""

    steps: tuple[AdditionStep, ...]
    result: Operand
    dtype: str | None


@lru_cache(maxsize=64)
def of_order(order: Order, leaves: int, *, start: bool) -> Schedule:
    """The steps that add up `leaves` leaves in `order`. Raises OrderError if the order is for another number."""
    return of_tree(tree(order, leaves, rooted=start), start=start, together=True)


@lru_cache(maxsize=1024)
def of_small_tree(root: AnyTree, *, start: bool) -> Schedule:
    """The steps of a tree, one addition each."""
    return of_tree(root, start=start, together=False)


def of_tree(root: AnyTree, *, start: bool, together: bool) -> Schedule:
    """The steps of a tree. start: the root's accumulator starts from a given value.

    together: additions share steps. If False, each addition is a step and leaves are asked for one by one, depth first,
    so that few are held at a time.
    """
    if start and (root is None or isinstance(root, int)):
        root = (root,)
    items = _Items()
    result = items.of(root, root=start)
    steps, places = _together(items.items) if together else _one_by_one(items.items)
    register, position = places.get(result, result)
    dtype = (root.round or root.accumulate) if isinstance(root, Sum) else None
    index = slice(position, position + 1)
    return Schedule(steps=_with_last_reads(steps, register), result=Operand(register, index), dtype=dtype)


Ref = tuple[int, int]
"""(source, position), or (_ITEM, number of an item) as long as the item has no register."""

_ITEM = -4


class _Item(NamedTuple):
    kind: AdditionKind
    accumulate: str | None
    operands: tuple[Ref, ...]
    time: int


@dataclass(slots=True)
class _Items:
    """Single additions, in an order in which they can be made."""

    items: list[_Item] = field(default_factory=list)

    def of(self, node: AnyTree, *, root: bool = False) -> Ref:
        """The reference to a node's value."""
        if node is None:
            return (ZERO, 0)
        if isinstance(node, int):
            return (LEAVES, node)
        if isinstance(node, tuple):
            node = Sum(children=node)
        total: Ref | None = (START, 0) if root else (ZERO, 0) if node.zero else None
        total = self._fused(node, total) if node.how == "fused" else self._chain(node, total)
        return total if node.round is None else self._make("round", node.round, (total,))

    def _chain(self, node: Sum, total: Ref | None) -> Ref:
        plain: AdditionKind = "kahan" if node.how == "kahan" else "neumaier" if node.how == "neumaier" else "add"
        start = total
        for child in node.children:
            value = self.of(child)
            if total is None:
                total = value
                continue
            kind: AdditionKind = "fma" if node.fma and isinstance(child, int) else plain
            total = self._make(kind, node.accumulate, (total, value))
        assert total is not None
        if node.how == "plain" or (start is None and len(node.children) == 1):
            return total
        return self._make("kahan_total" if node.how == "kahan" else "neumaier_total", node.accumulate, (total,))

    def _fused(self, node: Sum, total: Ref | None) -> Ref:
        values = [self.of(child) for child in node.children]
        if total is None:
            # An accumulator that starts from nothing takes its first terms alone.
            operands, values = tuple(values[: node.width]), values[node.width :]
            total = operands[0] if len(operands) == 1 else self._make("fused", node.accumulate, operands)
        for i in range(0, len(values), node.width):
            total = self._make("fused", node.accumulate, (total, *values[i : i + node.width]))
        return total

    def _make(self, kind: AdditionKind, accumulate: str | None, operands: tuple[Ref, ...]) -> Ref:
        time = max([self.items[number].time for source, number in operands if source == _ITEM], default=0)
        self.items.append(_Item(kind, accumulate, operands, 1 + time))
        return (_ITEM, len(self.items) - 1)


Places = dict[Ref, Ref]


def _one_by_one(items: Sequence[_Item]) -> tuple[list[AdditionStep], Places]:
    places = {(_ITEM, number): (number, 0) for number in range(len(items))}
    return [_step([[places.get(ref, ref) for ref in item.operands]], item) for item in items], places


def _together(items: Sequence[_Item]) -> tuple[list[AdditionStep], Places]:
    """Steps of items with the same time, kind and dtype whose operands lie in the same registers."""
    places: Places = {}
    steps: list[AdditionStep] = []
    by_time: dict[int, list[int]] = {}
    for number, item in enumerate(items):
        by_time.setdefault(item.time, []).append(number)
    for time in sorted(by_time):
        groups: dict[tuple[object, ...], list[tuple[list[Ref], int]]] = {}
        for number in by_time[time]:
            item = items[number]
            operands = [places.get(ref, ref) for ref in item.operands]
            key = (item.kind, item.accumulate, *(source for source, _ in operands))
            groups.setdefault(key, []).append((operands, number))
        for group in groups.values():
            group.sort(key=lambda member: [position for _, position in member[0]])
            places |= {(_ITEM, number): (len(steps), i) for i, (_, number) in enumerate(group)}
            steps.append(_step([operands for operands, _ in group], items[group[0][1]]))
    return steps, places


def _step(operands: list[list[Ref]], like: _Item) -> AdditionStep:
    columns = tuple(
        Operand(column[0][0], _index([position for _, position in column])) for column in zip(*operands, strict=True)
    )
    return AdditionStep(kind=like.kind, accumulate=like.accumulate, operands=columns, width=len(operands))


def _index(positions: list[int]) -> Index:
    """The positions; as a slice if they are evenly spaced and increasing."""
    gaps = {after - before for before, after in pairwise(positions)} or {1}
    gap = gaps.pop()
    if gaps or gap < 1:
        return tuple(positions)
    return slice(positions[0], positions[-1] + 1, gap)


def _with_last_reads(steps: Iterable[AdditionStep], result: int) -> tuple[AdditionStep, ...]:
    sources: set[int] = {result}
    with_reads: list[AdditionStep] = []
    for step in reversed(list(steps)):
        last = {operand.source for operand in step.operands if operand.source >= 0} - sources
        sources |= last
        with_reads.append(
            AdditionStep(
                kind=step.kind,
                accumulate=step.accumulate,
                operands=step.operands,
                width=step.width,
                last=tuple(sorted(last)),
            )
        )
    return tuple(reversed(with_reads))
