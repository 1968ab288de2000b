"""Experts that every rank numbers from 0: puts their calls on all ranks together, as the calls of one program that has
all experts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from moeparity.errors import TraceError, counted
from moeparity.evidence.diff.side import Side
from moeparity.evidence.trace.records import Call, Stack, Value
from moeparity.plan.spec.layout_schema import ExpertRule


@dataclass(frozen=True)
class Gathered:
    """The ranks of a trace put together: the calls of the first rank, with the calls of the others' own experts among
    them.

    calls: in the order in which they returned. own_values: ids of values of experts; each of these is whole on its
    rank. A value of rank r has the id that it has there plus `r * apart`.
    """

    parts: tuple[Side, ...]
    calls: tuple[Call, ...]
    stacks: Mapping[int, Stack]
    apart: int
    rule: ExpertRule | None = None
    own_values: frozenset[int] = frozenset()
    values: Mapping[int, Value] = field(default_factory=dict)

    def is_own(self, call: Call) -> bool:
        """Whether a call is of an expert that its rank alone has."""
        return self.rule is not None and _is_own(call, self.rule)

    def place(self, number: int) -> tuple[Side, int]:
        """The rank that a value lies on, and its id there."""
        return self.parts[number // self.apart], number % self.apart


def gathered(parts: Sequence[Side], rule: ExpertRule | None) -> Gathered:
    """All ranks, with experts by the numbers that the rule gives them. Raises TraceError where it can't be."""
    apart = 1 + max((number for part in parts for number in part.contents.values), default=0)
    first = parts[0]
    if rule is None:
        return Gathered(tuple(parts), first.calls, first.contents.stacks, apart)
    _refuse_other_ranks(rule, parts)
    ranks = tuple(_renumbered(part, rank, rule) for rank, part in enumerate(parts))
    moved = [_Moved(rank, part, call) for rank, part in enumerate(ranks) if rank for call in part.calls]
    moved = [each for each in moved if _is_own(each.call, rule)]
    calls, stacks = _merged(ranks, moved, apart)
    own_values = frozenset(number for call in calls if _is_own(call, rule) for number in _numbers(call))
    moved_values = (number for number in _with_bases(own_values, ranks, apart) if number >= apart)
    values = {number: _shifted(ranks, number, apart) for number in moved_values}
    return Gathered(ranks, calls, stacks, apart, rule, own_values, values)


@dataclass(frozen=True, slots=True)
class _Moved:
    """A call of another rank's own expert."""

    rank: int
    part: Side
    call: Call


def _refuse_other_ranks(rule: ExpertRule, parts: Sequence[Side]) -> None:
    if not isinstance(rule.per_rank, int) and len(rule.per_rank) != len(parts):
        raise TraceError(
            f"--layout: per_rank of experts lists those of {counted(len(rule.per_rank), 'rank')}, and the trace "
            f"{parts[0].folder} has {len(parts)}. Mend the rule."
        )


def _holder(path: str, rule: ExpertRule) -> int | None:
    """At which part of a path the number of an expert stands; None in no expert."""
    parts = path.split(".")
    numbers = [i for i, part in enumerate(parts) if part.isdigit() and fnmatchcase(".".join(parts[:i]), rule.path)]
    return numbers[0] if numbers else None


def _is_own(call: Call, rule: ExpertRule) -> bool:
    return _holder(call.path, rule) is not None


def _renumbered(part: Side, rank: int, rule: ExpertRule) -> Side:
    """A rank with the whole program's numbers of its experts."""
    calls = tuple(replace(call, path=_whole(call.path, part, rank, rule)) for call in part.calls)
    return replace(part, contents=replace(part.contents, calls=calls))


def _whole(path: str, part: Side, rank: int, rule: ExpertRule) -> str:
    at = _holder(path, rule)
    if at is None:
        return path
    names = path.split(".")
    per_rank = rule.per_rank
    experts = list(range(rank * per_rank, (rank + 1) * per_rank)) if isinstance(per_rank, int) else per_rank[rank]
    if int(names[at]) >= len(experts):
        raise TraceError(
            f"--layout: rank {part.head.rank} calls {path}, and by per_rank it has {counted(len(experts), 'expert')}. "
            "Mend the rule."
        )
    names[at] = str(experts[int(names[at])])
    return ".".join(names)


def _merged(parts: Sequence[Side], moved: Sequence[_Moved], apart: int) -> tuple[tuple[Call, ...], Mapping[int, Stack]]:
    """The first rank's calls, with those that were moved at the end of the module that they lie in."""
    first = parts[0]
    keys = {call.key: call.id for call in first.calls if call.level == "module"}
    behind: dict[int | None, list[_Moved]] = {}
    ids = {(each.rank, each.call.id) for each in moved}
    for each in moved:
        outer: _Moved = each
        while outer.call.inside is not None and (each.rank, outer.call.inside) in ids:
            outer = replace(outer, call=each.part.by_id[outer.call.inside])
        parent = None if outer.call.inside is None else each.part.by_id.get(outer.call.inside)
        behind.setdefault(None if parent is None else keys.get(parent.key), []).append(each)
    entered, returned = _orders(first, behind)
    fresh = {key: number for number, key in enumerate(key for _, key in sorted(entered))}
    parents = {(each.rank, each.call.id): parent for parent, moved_calls in behind.items() for each in moved_calls}
    stacks = {
        number + rank * apart: stack
        for rank, part in enumerate(parts)
        for number, stack in part.contents.stacks.items()
    }
    calls = []
    for rank, call in returned:
        inside = call.inside
        if (rank, call.id) in parents and (rank, inside) not in fresh:
            within: int | None = None if parents[rank, call.id] is None else fresh[0, parents[rank, call.id] or 0]
        else:
            within = None if inside is None else fresh.get((rank, inside))
        forward = None if call.forward_call is None else fresh.get((rank, call.forward_call))
        calls.append(
            replace(_shifted_call(call, rank * apart), id=fresh[rank, call.id], inside=within, forward_call=forward)
        )
    return tuple(calls), stacks


def _orders(
    first: Side, behind: Mapping[int | None, Sequence[_Moved]]
) -> tuple[list[tuple[tuple[int, int, int], tuple[int, int]]], list[tuple[int, Call]]]:
    """Calls by (rank, id): with when they were entered, and in the order in which they returned."""
    entered = [((call.id, 0, 0), (0, call.id)) for call in first.calls]
    returned: list[tuple[int, Call]] = []
    last = 0
    for call in first.calls:
        last = max(last, call.id)
        for each in behind.get(call.id, ()):
            entered.append(((last, each.rank, each.call.id), (each.rank, each.call.id)))
            returned.append((each.rank, each.call))
        returned.append((0, call))
    for each in behind.get(None, ()):
        entered.append(((last, each.rank, each.call.id), (each.rank, each.call.id)))
        returned.append((each.rank, each.call))
    return entered, returned


def _shifted_call(call: Call, more: int) -> Call:
    slots = (
        {slot: value + more for slot, value in numbers.items()} for numbers in (call.inputs, call.outputs, call.written)
    )
    inputs, outputs, written = slots
    stack = None if call.stack is None else call.stack + more
    return replace(call, inputs=inputs, outputs=outputs, written=written, stack=stack)


def _numbers(call: Call) -> Iterator[int]:
    yield from call.inputs.values()
    yield from call.outputs.values()
    yield from call.written.values()


def _with_bases(own_values: frozenset[int], parts: Sequence[Side], apart: int) -> Iterator[int]:
    """Values, and all that they look at."""
    waiting = list(own_values)
    while waiting:
        number = waiting.pop()
        yield number
        base = parts[number // apart].value(number % apart).base
        if base is not None:
            waiting.append(base + number // apart * apart)


def _shifted(parts: Sequence[Side], number: int, apart: int) -> Value:
    rank = number // apart
    value = parts[rank].value(number % apart)
    return replace(value, id=number, base=None if value.base is None else value.base + rank * apart)
