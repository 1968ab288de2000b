"""How much of two traces was compared, and why the rest was not. Only what is counted here may be called equal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from moeparity.evidence.diff.align import Aligned
from moeparity.evidence.diff.compare import Comparison
from moeparity.evidence.diff.flow import ValuePair
from moeparity.evidence.diff.pass_pairs import Run
from moeparity.evidence.diff.report import Coverage, Uncompared
from moeparity.evidence.diff.side import WHOLE, Side
from moeparity.evidence.trace.records import Call

_ORDER = ("differ", "apart", "rounded", "padding", "cast", "equal", "unknown")
"""Of a value that several were compared with, what counts."""
_EMPTY = ("aten.empty", "aten.new_empty", "aten.empty_like", "aten.empty_strided")


@dataclass(slots=True)
class Tally:
    """What became of the values of one pair of sides."""

    a: Side
    b: Side
    statuses: tuple[dict[int, Comparison], dict[int, Comparison]] = field(default_factory=lambda: ({}, {}))
    only: tuple[list[Call], list[Call]] = field(default_factory=lambda: ([], []))

    def add(self, aligned: Aligned, pairs: Iterable[ValuePair]) -> None:
        """Take in the calls and values of a pair of passes."""
        self.only[0].extend(aligned.only_a)
        self.only[1].extend(aligned.only_b)
        for pair in pairs:
            for status_of, number in zip(self.statuses, (pair.a, pair.b), strict=True):
                before = status_of.get(number)
                if before is None or _ORDER.index(pair.comparison.status) < _ORDER.index(before.status):
                    status_of[number] = pair.comparison

    def alone(self, which: int, runs: Iterable[Run]) -> None:
        """Take in passes that only one side has."""
        for run in runs:
            self.only[which].extend(run.calls)


def coverage(tallies: Sequence[Tally]) -> Coverage:
    """All pairs of sides together."""
    counts: Counter[str] = Counter()
    reasons: dict[str, list[str]] = {}
    uncovered = 0
    for tally in tallies:
        for which, side in enumerate((tally.a, tally.b)):
            results = given_values(side)
            statuses = tally.statuses[which]
            if which == 0:
                counts["values"] += len(results)
                counts.update(statuses[number].status for number in results if number in statuses)
            for number, reason in _uncovered(side, results, statuses):
                uncovered += 1
                reasons.setdefault(reason, []).append(f"{side.name}: {place(results[number])}")
    return Coverage(
        values=counts["values"], equal=counts["equal"], padding=counts["padding"], differing=counts["differ"],
        cast=counts["cast"], rounded=counts["rounded"],
        apart=counts["apart"],
        only_a=sum(len(tally.only[0]) for tally in tallies), only_b=sum(len(tally.only[1]) for tally in tallies),
        uncovered=uncovered,
        not_compared=tuple(
            Uncompared(reason=reason, values=len(places), example=places[0]) for reason, places in reasons.items()
        ),
    )  # fmt: skip


def given_values(side: Side) -> Mapping[int, Call]:
    """Every value that a call gave or wrote, with the call that made it; views aside, and a server's bookkeeping."""
    return {
        number: call
        for number, call in side.producers.items()
        if number not in side.bookkeeping
        and side.value(number).base is None
        and not call.name.startswith(_EMPTY)
        and 0 not in side.value(number).shape
    }


def place(call: Call) -> str:
    """`model.layers.0.mlp aten.mm.default`."""
    return f"{call.path} {call.name}".strip()


def _uncovered(
    side: Side, results: Mapping[int, Call], statuses: Mapping[int, Comparison]
) -> Iterable[tuple[int, str]]:
    """Values that were compared neither themselves nor by something made of them."""
    covered = {side.root_of(number) for number, comparison in statuses.items() if comparison.status != "unknown"}
    for call in reversed(side.calls):
        # What gives no tensor made a decision: which calls follow shows which.
        decides = not call.outputs and not call.written
        if decides or any(
            side.root_of(number) in covered for number in (*call.outputs.values(), *call.written.values())
        ):
            covered.update(side.root_of(number) for number in call.inputs.values())
    constant: set[int] = set()
    for call in side.calls:
        if call.level == "op" and all(side.root_of(number) in constant for number in call.inputs.values()):
            # Of nothing that the program was given: where it matters, what was made of it was compared.
            constant.update(side.root_of(number) for number in call.outputs.values())
    unread = _unread_places(side, results, covered)
    for number in results:
        if number not in covered | constant | unread:
            comparison = statuses.get(number)
            yield number, comparison.reason if comparison is not None else "calls that the other trace has not"


def _unread_places(side: Side, results: Mapping[int, Call], covered: AbstractSet[int]) -> set[int]:
    """Whole numbers that nothing reads, given beside what is covered: the places of maxima, where only these count."""
    read = {side.root_of(number) for call in side.calls for number in call.inputs.values()}
    return {
        number
        for number, call in results.items()
        if number not in read and side.value(number).dtype in WHOLE and call.level == "op"
        if any(side.root_of(other) in covered for other in call.outputs.values() if other != number)
    }
