"""Ranks of one trace put together as a declared layout says, and tokens where the traces do not say them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path

import torch
from torch import Tensor

from moeparity.errors import TraceError, Where
from moeparity.evidence.diff.side import Side, is_contiguous, side_of
from moeparity.evidence.diff.tokens import Tokens, stated
from moeparity.evidence.trace.read import Contents, Trace
from moeparity.evidence.trace.records import Call, Value
from moeparity.plan.spec import reader
from moeparity.plan.spec.layout import Cut, Placed, RankRule, SideRules

MOST = 12
"""Values that differ between ranks of which a report tells."""


@dataclass(frozen=True, slots=True)
class Layout:
    """What a layout file says of either trace; nothing where there is none."""

    a: SideRules = field(default_factory=SideRules)
    b: SideRules = field(default_factory=SideRules)

    def tokens(self, name: str) -> Tokens | None:
        """The stated tokens of the forward passes of trace A or B."""
        rule = (self.a if name == "A" else self.b).tokens
        return None if rule is None else stated(rule.lengths, rule.padded_to, left=rule.padding == "left")


@dataclass(frozen=True, slots=True)
class Sides:
    """Which side is compared with which, and what differs among ranks that the layout calls replicas."""

    pairs: tuple[tuple[Side, Side], ...]
    findings: tuple[str, ...]


def read_layout(path: Path) -> Layout:
    """A layout file. Raises SpecError."""
    file = reader.read_layout(path)
    return Layout(file.a, file.b)


def sides(traces: tuple[Trace, Trace], layout: Layout) -> Sides:
    """Ranks put together where the layout speaks of them, else rank by rank. Raises TraceError where neither can be."""
    ours, theirs = (
        _sides(name, trace, rules) for name, trace, rules in (("A", traces[0], layout.a), ("B", traces[1], layout.b))
    )
    if len(ours) != len(theirs):
        raise TraceError(
            f"{Where(traces[0].folder)} has {len(ours)} ranks to compare and {Where(traces[1].folder)} {len(theirs)}. "
            "Say with --layout FILE how the ranks of one are put together (docs/diff.md)."
        )
    findings = [text for side in (*ours, *theirs) if isinstance(side.store, Joined) for text in side.store.findings()]
    return Sides(tuple(zip(ours, theirs, strict=True)), tuple(findings))


def _sides(name: str, trace: Trace, rules: SideRules) -> list[Side]:
    parts = [side_of(name, rank) for rank in trace.ranks]
    if not rules.ranks:
        return parts
    joined = Joined(parts, rules.ranks)
    contents = Contents(
        parts[0].calls, joined.values(), parts[0].contents.stacks,
        tuple(dict.fromkeys(note for part in parts for note in part.contents.notes)),
        all(part.contents.whole for part in parts),
    )  # fmt: skip
    return [Side(name, str(Where(trace.folder)), parts[0].head, contents, joined, joined.apart)]


class Joined:
    """The values of several ranks as one: those of the first rank, whose parts lie in the others at the same calls."""

    def __init__(self, parts: Sequence[Side], rules: Sequence[RankRule]) -> None:
        self._parts = parts
        self._placed: dict[int, Placed] = {}
        self._others: dict[int, tuple[int, ...]] = {}
        self._where: dict[int, str] = {}
        others = [{_key(call): call for call in part.calls} for part in parts[1:]]
        for role in ("outputs", "inputs"):
            for call in parts[0].calls:
                calls = [own.get(_key(call)) for own in others]
                for slot, number in _slots(call, role):
                    self._declare(rules, role, call, slot, number, calls)
        known = {number for number, placed in self._placed.items() if placed != "partial"}
        self._values = {number: self._joined(value) for number, value in parts[0].contents.values.items()}
        views = {n for n, value in self._values.items() if value.base in known and n not in self._placed}
        whole = {n for n in views if not isinstance(self._placed[self._values[n].base or 0], Cut) or self._turned(n)}
        self.apart = frozenset(set(self._values) - known - whole)

    def _declare(
        self, rules: Sequence[RankRule], role: str, call: Call, slot: str, number: int, calls: Sequence[Call | None]
    ) -> None:
        if number in self._placed:
            return
        key = "weights" if role == "inputs" and self._parts[0].is_weight(number) else role
        if call.level != "module" and self._parts[0].value(number).base is not None:
            return
        placed = next(
            (said for rule in rules if fnmatchcase(call.path, rule.path) and (said := getattr(rule, key)) is not None),
            None,
        )
        numbers = [None if other is None else dict(_slots(other, role)).get(slot) for other in calls]
        if placed is not None and all(other is not None for other in numbers):
            self._placed[number] = placed
            self._others[number] = tuple(other for other in numbers if other is not None)
            self._where[number] = f"{call.path} {call.name} {slot}"

    def values(self) -> Mapping[int, Value]:
        """The values as they are once put together."""
        return {**self._values, **{number: self._turned(number) or value for number, value in self._values.items()}}

    def _turned(self, number: int) -> Value | None:
        """A view of a value that is cut, which shows it whole: with its axes in another order, or with its rows along
        other axes; None for any other.
        """
        value = self._parts[0].value(number)
        base = None if value.base is None else self._parts[0].value(value.base)
        if base is None or number in self._placed or not isinstance(self._placed.get(base.id), Cut):
            return None
        joined = self._values[base.id]
        count = torch.Size(base.shape).numel()
        if is_contiguous(value) and torch.Size(value.shape).numel() == count and value.shape[-1:] == base.shape[-1:]:
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
        if not isinstance(placed, Cut):
            return self._parts[0].rows(value.id)
        axis = _axis(placed, len(value.shape), self._where[value.id])
        parts = []
        for part, number in self._all(value.id):
            rows = part.rows(number)
            if rows is None:
                return None
            parts.append(rows.reshape(part.value(number).shape[:-1]))
        return torch.cat(parts, axis).reshape(-1)

    def tensor(self, value: Value) -> Tensor | None:
        """The whole value, where every rank kept its part."""
        placed = self._placed.get(value.id)
        if not isinstance(placed, Cut):
            return self._parts[0].tensor(value.id)
        tensors = [part.tensor(number) for part, number in self._all(value.id)]
        kept = [tensor for tensor in tensors if tensor is not None]
        axis = _axis(placed, len(value.shape), self._where[value.id])
        return torch.cat(kept, axis) if len(kept) == len(tensors) else None

    def findings(self) -> Iterator[str]:
        """Replicas whose bits differ, up to `MOST`."""
        told = 0
        for number, placed in self._placed.items():
            digests = [part.digest(other) for part, other in self._all(number)] if placed == "replicated" else []
            odd = [rank for rank, digest in enumerate(digests) if None not in digests and digest != digests[0]]
            if odd and told < MOST:
                told += 1
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


def _key(call: Call) -> tuple[object, ...]:
    return call.step, call.phase, call.level, call.path, call.name, call.nth


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(torch.Size(shape[i + 1 :]).numel() for i in range(len(shape)))


def _axis(placed: Cut, axes: int, where: str) -> int:
    if not -axes <= placed.axis < axes:
        raise TraceError(f"--layout: axis {placed.axis} of {where}: it has {axes} axes. Mend the rule.")
    return placed.axis % axes
