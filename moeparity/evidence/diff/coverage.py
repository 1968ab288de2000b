"""How much of two traces was compared, and why the rest was not. Only what is counted here may be called equal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
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
    needless = _dead_ends(side, results)
    for number in results:
        if number not in covered | constant | needless:
            comparison = statuses.get(number)
            yield number, comparison.reason if comparison is not None else "calls that the other trace has not"


def _dead_ends(side: Side, results: Mapping[int, Call]) -> set[int]:
    """Whole numbers that end nowhere: no module is given them, and no floating-point number is made of them. Such are
    the counters of a loop that decodes, and the places of maxima of which only the maxima are read.
    """
    used: set[int] = set()
    for call in reversed(side.calls):
        results_here = {side.root_of(number) for number in (*call.outputs.values(), *call.written.values())}
        decides = not results_here
        computes = any(side.value(number).dtype not in WHOLE for number in results_here)
        if call.level == "module" or decides or computes or results_here & used:
            used.update(side.root_of(number) for number in call.inputs.values())
    of_ops = {number for number, call in results.items() if call.level == "op" and side.value(number).dtype in WHOLE}
    return of_ops - used
