"""Where a difference begins: pairs of values that differ while all that they were made of has equal bits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from moeparity.evidence.diff.align import Aligned
from moeparity.evidence.diff.compare import Comparer, Comparison
from moeparity.evidence.diff.pass_pairs import RunPair
from moeparity.evidence.diff.side import OWN, WHOLE, Side
from moeparity.evidence.diff.views import compare_views, memory_rows
from moeparity.evidence.trace.records import Call

FlowKind = Literal["op", "module", "weight", "input", "unseen", "wiring", "behind"]
Role = Literal["output", "input"]

EQUAL = ("equal", "cast", "padding")
"""Statuses of values that are one, as far as tokens go."""
_MIXED = "of several tokens in a row, and made of values whose padding differs"
_PLACES = "places in rows whose columns stand elsewhere"
DIFFERING = ("differ", "apart", "rounded")


@dataclass(frozen=True, slots=True, kw_only=True)
class ValuePair:
    """Two values that stand in one place: of a pair of calls, at a slot of each."""

    a: int
    b: int
    calls: tuple[Call, Call]
    slot: str
    role: Role
    comparison: Comparison


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a difference begins: the pair that differs, and the calls between it and values with equal bits. For a
    place that lies `behind` such a beginning: the calls between it and values with a partner.
    """

    pair: ValuePair
    kind: FlowKind
    ops_a: tuple[Call, ...] = ()
    ops_b: tuple[Call, ...] = ()
    unread: int = 0


@dataclass(slots=True)
class Knowledge:
    """What is known of each side's values: which have an equal partner, which have only a partner that differs, and
    which look at another part than their partner.
    """

    equal: tuple[dict[int, int], dict[int, int]] = field(default_factory=lambda: ({}, {}))
    differing: tuple[dict[int, int], dict[int, int]] = field(default_factory=lambda: ({}, {}))
    other_parts: tuple[set[int], set[int]] = field(default_factory=lambda: (set(), set()))

    def add(self, pair: ValuePair) -> None:
        """Keep what a comparison of two values told: they are equal, or differ, or look at other parts."""
        sets = {**dict.fromkeys(DIFFERING, self.differing), **dict.fromkeys(EQUAL, self.equal)}.get(
            pair.comparison.status
        )
        if sets is not None:
            sets[0].setdefault(pair.a, pair.b)
            sets[1].setdefault(pair.b, pair.a)
        if pair.comparison.other_part:
            self.other_parts[0].add(pair.a)
            self.other_parts[1].add(pair.b)


@dataclass(slots=True)
class Before:
    """What earlier passes of either side were found to have differed in, such as what they left in a cache."""

    _differing: dict[tuple[int, int], dict[int, int]] = field(default_factory=dict)

    def known_before(self, pair: RunPair) -> Knowledge:
        """What is known as two passes begin: values of other passes, which these may read, differ as they did there."""
        known_values = Knowledge()
        for (which, number), values in self._differing.items():
            if number != id((pair.a, pair.b)[which]):
                known_values.differing[which].update(values)
        return known_values

    def add(self, pair: RunPair, known_values: Knowledge, beginnings: Iterable[Origin]) -> None:
        """Take in what became of two passes: what differs, and what lies between equal values and such a one, of which
        any may be the first that is other.
        """
        for which, run in enumerate((pair.a, pair.b)):
            values = self._differing.setdefault((which, id(run)), {})
            values.update(known_values.differing[which])
            for call in (call for origin in beginnings for call in (origin.ops_a, origin.ops_b)[which]):
                values.update(dict.fromkeys((*call.outputs.values(), *call.written.values()), -1))


def value_pairs(comparer: Comparer, aligned: Aligned) -> Iterator[ValuePair]:
    """The values of paired calls, slot by slot: first what each call reads, then what it gives or writes.

    Two calls may stand in one place only by the order of their names. If what they read has nothing to do with each
    other, they are taken for no pair.
    """
    partners: dict[int, int] = {}
    padded: set[int] = set()
    for ours, theirs in aligned.pairs:
        inputs = list(_of_slots(comparer, (ours, theirs), ours.inputs, theirs.inputs, "input"))
        if ours.id in aligned.loose and not _borne_out(comparer, inputs, partners):
            aligned.only_a.append(ours)
            aligned.only_b.append(theirs)
            continue
        partners[ours.id] = theirs.id
        results = list(_of_slots(comparer, (ours, theirs), _results(ours), _results(theirs), "output"))
        roots = {comparer.a.root_of(pair.a) for pair in inputs}
        if any(pair.comparison.by_keys or _widths(comparer, pair) for pair in inputs):
            results = [_without_places(comparer, pair) for pair in results]
        for pair in (*inputs, *results):
            root_ids = {comparer.a.root_of(pair.a)} if pair.role == "input" else roots
            if root_ids & padded and pair.comparison.status == "differ" and not _of_tokens(comparer, pair):
                padded.add(pair.a)
                yield replace(pair, comparison=Comparison(status="unknown", reason=_MIXED))
            else:
                padded |= {comparer.a.root_of(pair.a)} if pair.comparison.status == "padding" else set()
                yield pair


def _widths(comparer: Comparer, pair: ValuePair) -> bool:
    """Whether rows of two values have other widths, as those of attention scores have beside more padding."""
    return comparer.a.value(pair.a).shape[-1:] != comparer.b.value(pair.b).shape[-1:]


def _without_places(comparer: Comparer, pair: ValuePair) -> ValuePair:
    """Whole numbers that were made of such rows may say where in a row something stands, and are not compared, unless
    they have a column for each key themselves.
    """
    counts = comparer.a.value(pair.a).dtype in WHOLE and comparer.b.value(pair.b).dtype in WHOLE
    counts = counts and not pair.comparison.by_keys
    return replace(pair, comparison=Comparison(status="unknown", reason=_PLACES)) if counts else pair


def _of_tokens(comparer: Comparer, pair: ValuePair) -> bool:
    """Whether the rows of a value are each of one token, and its columns, as those of attention scores, are not."""
    tokens, shape = comparer.pair.a.tokens, comparer.a.value(pair.a).shape
    across = tokens is not None and shape[-1:] in {(tokens.grid[-1],), (tokens.count,)}
    return bool(pair.comparison.tokens) and not across


def _of_slots(
    comparer: Comparer, calls: tuple[Call, Call], left: Mapping[str, int], right: Mapping[str, int], role: Role
) -> Iterator[ValuePair]:
    for slot, a, b in _slots(dict(left), dict(right)):
        if a not in comparer.a.bookkeeping and b not in comparer.b.bookkeeping:
            yield ValuePair(a=a, b=b, calls=calls, slot=slot, role=role, comparison=compare_views(comparer, a, b))


def _borne_out(comparer: Comparer, inputs: Sequence[ValuePair], partners: Mapping[int, int]) -> bool:
    """Whether each value that one call reads is equal to the other's, was made by the partner of the call that made
    that one, or is a weight that the other program does not have.
    """
    a, b = comparer.a, comparer.b
    for pair in inputs:
        if pair.comparison.status in EQUAL:
            continue
        makers = a.producers.get(a.root_of(pair.a)), b.producers.get(b.root_of(pair.b))
        if makers[0] is not None and makers[1] is not None:
            if partners.get(makers[0].id) != makers[1].id:
                return False
        elif makers != (None, None) or a.weights.get(b.root_digest(pair.b)) or b.weights.get(a.root_digest(pair.a)):
            return False
    return True


def _results(call: Call) -> dict[str, int]:
    return {**call.outputs, **{f"written {slot}": number for slot, number in call.written.items()}}


def _slots(left: dict[str, int], right: dict[str, int]) -> Iterator[tuple[str, int, int]]:
    """Slots of one name; what remains of what they were given, one after the other, where either side has as many."""
    for slot in [slot for slot in left if slot in right]:
        yield slot, left.pop(slot), right.pop(slot)
    left, right = ({slot: n for slot, n in rest.items() if not slot.startswith(OWN)} for rest in (left, right))
    if len(left) == len(right):
        yield from ((slot, a, b) for (slot, a), b in zip(left.items(), right.values(), strict=True))


class Flow:
    """Which values of a side are made of equal ones alone, as far as that is known."""

    def __init__(self, side: Side, knowledge: Knowledge, which: int) -> None:
        self.side = side
        self.equal, self.differing = knowledge.equal[which], knowledge.differing[which]
        self.other_parts = knowledge.other_parts[which]

    @cached_property
    def _clean(self) -> dict[int, bool]:
        """Of values that were compared with nothing, whether all that they were made of is clean."""
        clean: dict[int, bool] = {}
        for number, maker in self.side.producers.items():
            clean[number] = self._all(maker.inputs.values(), clean)
        return clean

    def _all(self, numbers: Iterable[int], clean: dict[int, bool]) -> bool:
        return all(self._is_clean(number, clean) for number in numbers)

    def _is_clean(self, number: int, clean: dict[int, bool]) -> bool:
        for value_id in (number, self.side.root_of(number)):
            if value_id in self.equal:
                return True
            if value_id in self.differing:
                return False
        return clean.get(self.side.root_of(number), True)

    def is_known(self, number: int) -> bool:
        """Whether something recorded made a value, or it has an equal partner."""
        root = self.side.root_of(number)
        return root in self.side.producers or root in self.equal or number in self.equal

    def made_of_equal(self, number: int) -> bool:
        """Whether a value that differs was made of clean values; also where it has an equal partner elsewhere."""
        if number in self.equal:
            return True
        root = self.side.root_of(number)
        if root != number and (root in self.equal or root in self.differing):
            return root in self.equal
        maker = self.side.producers.get(root)
        return maker is None or self._all(maker.inputs.values(), self._clean)

    def since_equal(self, number: int) -> tuple[tuple[Call, ...], list[int]]:
        """The calls between a value and values with equal bits, in order; and those values that they read and that were
        compared with nothing: values that no call made, such as fused weights, and other parts of a value.
        """
        ops: dict[int, Call] = {}
        unread: list[int] = []
        waiting, visited = [number], {number}
        while waiting:
            value = waiting.pop()
            root = self.side.root_of(value)
            if value in self.equal:
                continue
            maker = None if root in self.equal else self.side.producers.get(root)
            if value in self.other_parts or (maker is None and root not in self.equal and value != number):
                unread.append(value)
            if maker is None:
                continue
            ops[maker.id] = maker
            fresh = [n for n in maker.inputs.values() if n not in visited and n not in self.side.bookkeeping]
            visited.update(fresh)
            waiting += fresh
        return tuple(sorted(ops.values(), key=self.side.returned)), unread


def origins(comparer: Comparer, pairs: Sequence[ValuePair], known_values: Knowledge) -> list[Origin]:
    """Where differences begin, in the order in which A got there.

    A module's input that no recorded call made is such a place only if nothing differed before it, since what lies
    between modules was not seen.
    """
    a, b = (Flow(side, known_values, i) for i, side in enumerate((comparer.a, comparer.b)))
    starts: list[Origin] = []
    done: set[tuple[int, int]] = set()
    for pair in sorted((p for p in pairs if p.comparison.status in DIFFERING), key=lambda p: moment(comparer.a, p)):
        roots = comparer.a.root_of(pair.a), comparer.b.root_of(pair.b)
        if roots not in done and a.made_of_equal(pair.a) and b.made_of_equal(pair.b):
            origin = _origin(a, b, pair)
            if origin.kind != "unseen" or not done:
                starts.append(origin)
        # A view of what was told already is the same difference.
        done.add(roots)
    return starts


def _origin(a: Flow, b: Flow, pair: ValuePair) -> Origin:
    (ours, unread_a), (theirs, unread_b) = a.since_equal(pair.a), b.since_equal(pair.b)
    kind: FlowKind = "op"
    if not ours and not theirs:
        if a.is_known(pair.a) and b.is_known(pair.b):
            kind = "wiring"
        elif a.side.is_weight(pair.a):
            kind = "weight"
        else:
            kind = "input" if pair.calls[0].inside not in a.side.by_id else "unseen"
    elif all(call.level == "module" for call in (*ours, *theirs)):
        kind = "module"
    return Origin(pair=pair, kind=kind, ops_a=ours, ops_b=theirs, unread=_unread(a, unread_a, b, unread_b))


def _unread(a: Flow, ours: Sequence[int], b: Flow, theirs: Sequence[int]) -> int:
    """How many inputs may be others: none where all rows of the one side's are rows of the other's, as when fused."""
    rows: list[set[int]] = []
    for flow, numbers in ((a, ours), (b, theirs)):
        digests_of = [None if n in flow.other_parts else memory_rows(flow.side, n) for n in numbers]
        if any(digests is None for digests in digests_of):
            return max(len(ours), len(theirs))
        rows.append({row for digests in digests_of if digests is not None for row in digests.tolist()})
    return 0 if rows[0] <= rows[1] or rows[1] <= rows[0] else max(len(ours), len(theirs))


def moment(side: Side, pair: ValuePair) -> tuple[int, int]:
    """When A had the value: when its maker returned, or when the first call that reads it was entered."""
    maker = side.producers.get(side.root_of(pair.a))
    if maker is not None:
        return side.returned(maker)
    return side.entered(pair.calls[0]) if pair.role == "input" else side.returned(pair.calls[0])
