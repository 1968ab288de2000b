"""The values of several ranks as those of one program: parts behind each other, sums of parts, replicas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

import torch
from torch import Tensor

from moeparity.errors import TraceError
from moeparity.evidence.diff.own_experts import Gathered
from moeparity.evidence.diff.side import Side
from moeparity.evidence.trace.digest import row_digests
from moeparity.evidence.trace.records import Call, Value
from moeparity.numerics.collectives.execute import all_reduce
from moeparity.numerics.collectives.registry import COLLECTIVES, SELECTIONS, find
from moeparity.numerics.order_map import Message
from moeparity.numerics.orders import parse, tree
from moeparity.numerics.rounding import rounded
from moeparity.numerics.summation import sum_leaves
from moeparity.plan.spec.layout_schema import Cut, Placed, RankRule, Summed

MOST = 12
"""Values that differ between ranks of which a report tells."""


class Joined:
    """Several ranks read as one program: the first rank's calls, with each value put together from what all ranks
    recorded at the same call.
    """

    def __init__(self, gathered: Gathered, rules: Sequence[RankRule]) -> None:
        parts = gathered.parts
        self._parts, self._gathered = parts, gathered
        self._placed: dict[int, Placed] = {}
        self._others: dict[int, tuple[int, ...]] = {}
        self._where: dict[int, str] = {}
        others = [{call.key: call for call in part.calls} for part in parts[1:]]
        for role in ("outputs", "inputs"):
            for call in parts[0].calls:
                if gathered.is_own(call):
                    continue
                calls = [by_key.get(call.key) for by_key in others]
                for slot, number in _slots(call, role):
                    self._declare(rules, role, call, slot, number, calls)
        whole_values = {number for number, placed in self._placed.items() if placed not in {"partial", "own"}}
        self._values = {number: self._joined(value) for number, value in parts[0].contents.values.items()}
        views = {n for n, value in self._values.items() if value.base in whole_values and n not in self._placed}
        whole = {n for n in views if not isinstance(self._placed[self._values[n].base or 0], Cut) or self._turned(n)}
        self.apart = frozenset(set(self._values) - whole_values - whole - gathered.own_values)

    def _declare(
        self, rules: Sequence[RankRule], role: str, call: Call, slot: str, number: int, calls: Sequence[Call | None]
    ) -> None:
        if number in self._placed or number in self._gathered.own_values:
            return
        key = "weights" if role == "inputs" and self._parts[0].is_weight(number) else role
        base = self._parts[0].value(number).base
        if base is not None and (call.level != "module" or self._is_partial(base)):
            return
        fitting = (rule for rule in rules if fnmatchcase(call.path, rule.path) and fnmatchcase(call.name, rule.call))
        placed = next((way for rule in fitting if (way := getattr(rule, key)) is not None), None)
        numbers = [None if partner is None else dict(_slots(partner, role)).get(slot) for partner in calls]
        if placed is not None and all(partner is not None for partner in numbers):
            self._placed[number] = placed
            self._others[number] = tuple(partner for partner in numbers if partner is not None)
            self._where[number] = f"{call.path} {call.name} {slot}"

    def _is_partial(self, number: int) -> bool:
        """Whether a value, or what it looks at, is a part of a sum: a module that hands it on leaves it one."""
        placed = self._placed.get(self._parts[0].root_of(number))
        return placed == "partial" or isinstance(placed, Summed)

    def values(self) -> Mapping[int, Value]:
        """The values as they are once put together."""
        return {
            **self._values,
            **self._gathered.values,
            **{number: self._turned(number) or value for number, value in self._values.items()},
        }

    def _turned(self, number: int) -> Value | None:
        """A view of a value that is cut over ranks, if the view shows the value whole: its axes in another order, or
        its rows along other axes. None for any other view.
        """
        value = self._parts[0].value(number)
        base = None if value.base is None else self._parts[0].value(value.base)
        if base is None or number in self._placed or not isinstance(self._placed.get(base.id), Cut):
            return None
        joined = self._values[base.id]
        count = torch.Size(base.shape).numel()
        if value.is_contiguous and torch.Size(value.shape).numel() == count and value.shape[-1:] == base.shape[-1:]:
            along_rows = joined.shape[-1:] != base.shape[-1:]
            shape = (*value.shape[:-1], *joined.shape[-1:])
            return replace(value, shape=shape, strides=_contiguous(shape), offset=joined.offset) if along_rows else None
        order = [base.strides.index(step) for step in value.strides if step in base.strides]
        if sorted(order) != list(range(len(base.shape))) or tuple(base.shape[i] for i in order) != tuple(value.shape):
            return None
        shape, strides = (tuple(axes[i] for i in order) for axes in (joined.shape, joined.strides))
        return replace(value, shape=shape, strides=strides, offset=joined.offset)

    def _joined(self, value: Value) -> Value:
        placed = self._placed.get(value.id)
        if isinstance(placed, Summed):
            return replace(value, base=None, digest=None, stats=None, rows=False)
        if not isinstance(placed, Cut):
            return value
        shapes = [part.value(number).shape for part, number in self._all(value.id)]
        axis = _axis(placed, len(value.shape), self._where[value.id])
        shape = tuple(sum(s[axis] for s in shapes) if i == axis else size for i, size in enumerate(value.shape))
        leading = axis < len(value.shape) - 1
        return replace(
            value, shape=shape, base=None, digest=None, stats=None, strides=_contiguous(shape), offset=0,
            rows=leading and all(part.rows(number) is not None for part, number in self._all(value.id)),
        )  # fmt: skip

    def rows(self, value: Value) -> Tensor | None:
        """The digests of the rows of all ranks, where each rank has whole rows."""
        placed = self._placed.get(value.id)
        if isinstance(placed, Summed):
            total = self.tensor(value)
            return None if total is None else row_digests(total)
        if not isinstance(placed, Cut):
            part, number = self._gathered.place(value.id)
            return part.rows(number)
        axis = _axis(placed, len(value.shape), self._where[value.id])
        parts = []
        for part, number in self._all(value.id):
            rows = part.rows(number)
            if rows is None:
                return None
            parts.append(rows.reshape(part.value(number).shape[:-1]))
        return torch.cat(parts, axis).reshape(-1)

    def tensor(self, value: Value) -> Tensor | None:
        """The whole value, where every rank kept its part; of a view what it looks at of the whole."""
        placed = self._placed.get(value.id)
        if isinstance(placed, (Cut, Summed)):
            return self._whole(value.id, placed)
        base = None if value.base is None else self._values.get(value.base)
        if base is not None and isinstance(self._placed.get(base.id), (Cut, Summed)):
            whole = self.tensor(base)
            if whole is None or value.id in self.apart:
                return None
            laid = torch.empty_strided(whole.shape, base.strides, dtype=whole.dtype).copy_(whole)
            return laid.as_strided(value.shape, value.strides, value.offset - base.offset)
        part, number = self._gathered.place(value.id)
        return part.tensor(number)

    def _whole(self, number: int, placed: Cut | Summed) -> Tensor | None:
        tensors = [part.tensor(partner) for part, partner in self._all(number)]
        shards = [tensor for tensor in tensors if tensor is not None]
        if len(shards) != len(tensors):
            return None
        if isinstance(placed, Summed):
            return _summed(shards, placed.sum, self._where[number])
        return torch.cat(shards, _axis(placed, shards[0].dim(), self._where[number]))

    def findings(self) -> Iterator[str]:
        """Replicas whose bits differ, up to `MOST`."""
        told_count = 0
        for number, placed in self._placed.items():
            digests = [part.digest(partner) for part, partner in self._all(number)] if placed == "replicated" else []
            odd = [rank for rank, digest in enumerate(digests) if None not in digests and digest != digests[0]]
            if odd and told_count < MOST:
                told_count += 1
                ranks = " and ".join(str(self._parts[rank].head.rank) for rank in odd)
                yield f"{self._parts[0].name}: {self._where[number]}: rank {ranks} has other bits than rank 0"

    def _all(self, number: int) -> Iterator[tuple[Side, int]]:
        return zip(self._parts, (number, *self._others[number]), strict=True)


def _slots(call: Call, role: str) -> Iterator[tuple[str, int]]:
    if role == "inputs":
        yield from call.inputs.items()
    else:
        yield from call.outputs.items()
        yield from ((f"written {slot}", number) for slot, number in call.written.items())


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(torch.Size(shape[i + 1 :]).numel() for i in range(len(shape)))


def _axis(placed: Cut, axes: int, where: str) -> int:
    if not -axes <= placed.axis < axes:
        raise TraceError(f"--layout: axis {placed.axis} of {where}: it has {axes} axes. Mend the rule.")
    return placed.axis % axes


def _summed(parts: Sequence[Tensor], order: str, where: str) -> Tensor:
    """The sum of the ranks' parts, all of one shape and dtype: as a collective adds them, or in an order over the
    ranks. Such an order adds in fp32 (fp64 for fp64) unless it says otherwise. The sum is rounded to the parts' dtype.

    Raises TraceError if the order is of another number of ranks, or if the collective does not take such a message.
    """
    first = parts[0]
    try:
        if order in COLLECTIVES or order in SELECTIONS:
            width = first.shape[-1] if first.dim() else 1
            message = Message(first.numel(), first.element_size(), len(parts), width)
            return all_reduce(find(order, message), [part.contiguous() for part in parts])[0]
        wide = torch.promote_types(first.dtype, torch.float32)
        return rounded(sum_leaves(parts, tree(parse(order), len(parts)), accumulate=wide), first.dtype)
    except ValueError as error:
        why = str(error).rstrip(".")
        raise TraceError(f"--layout: the sum of {where} over {len(parts)} ranks: {why}. Mend the rule.") from None
