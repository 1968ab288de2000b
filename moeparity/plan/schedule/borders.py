"""Where the spans of a schedule take a state over: from an earlier step, out of a prefix cache, or from nowhere."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from moeparity.plan.schedule.steps import Copy, Schedule, Span, Step


class End(NamedTuple):
    """The end of a span, and the border before the next one: a sequence, and the column behind the span's last."""

    sequence: int
    column: int


Columns = Mapping[int, Sequence[int]]
"""By sequence, the columns of some of its ends, ascending."""


class Borders:
    """The borders between the steps of a schedule, by the sequences' spans.

    A span whose first column is the end of an earlier span or copy of its sequence begins from the state there; every
    other one begins anew.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self._copies: dict[int, list[Copy]] = {}
        for copy in (copy for step in schedule.steps for copy in step.copies):
            self._copies.setdefault(copy.sequence, []).append(copy)
        self._taken_of: dict[tuple[int, bool], tuple[Borders, Columns]] = {}

    def before(self, span: Span) -> End | None:
        """The border that a span begins at; None if it begins anew."""
        end = End(span.sequence, span.first)
        return end if end in self.continued else None

    def origin(self, end: End) -> End:
        """The tokens whose state stands at a border of any schedule: those before it, or those they are copied of."""
        copies = self._copies.get(end.sequence)
        if copies is None:
            return end
        # Copies of a sequence follow each other from its first token on.
        place = bisect_left(copies, end.column, key=lambda copy: copy.last)
        if place == len(copies) or copies[place].first >= end.column:
            return end
        return self.origin(End(copies[place].source, end.column + copies[place].shift))

    def taken_of(self, giver: Borders, *, resets: bool) -> Columns:
        """Where spans of this schedule take a state over from a walker of the schedule of `giver`. Without `resets`
        they do so where sequences begin, too.
        """
        key = id(giver), resets
        if key not in self._taken_of:
            columns: dict[int, list[int]] = {}
            ends = self.continued if resets else {*self.continued, *self.unreset.values()}
            for sequence, column in sorted({giver.origin(self.origin(end)) for end in ends}):
                columns.setdefault(sequence, []).append(column)
            # The giver is kept, so that no other one gets its id.
            self._taken_of[key] = giver, columns
        return self._taken_of[key][1]

    @cached_property
    def continued(self) -> frozenset[End]:
        """The borders at which some span goes on."""
        ends: set[End] = set()
        borders = set()
        for step in self.schedule.steps:
            ends.update(End(copy.sequence, copy.last) for copy in step.copies)
            for span in step.spans:
                begin = End(span.sequence, span.first)
                borders |= {begin} & ends
                ends.add(End(span.sequence, span.last))
        return frozenset(borders)

    @cached_property
    def unreset(self) -> dict[End, End]:
        """For a span that begins anew, the state that it would begin from if nobody had reset it: in a pack that of the
        sequence before it, in a server's steps that of the last sequence that gave its slot back. Slots of sequences
        that begin with tokens of a prefix cache are overwritten in any case.
        """
        last = {
            span.sequence: place
            for place, step in enumerate(self.schedule.steps)
            for span in (() if step.filler else step.spans)
        }
        free: list[End] = []
        states: dict[End, End] = {}
        for place, step in enumerate(self.schedule.steps):
            if step.filler or step.shape == "dense":
                continue
            for begin, end, is_last in _sequences(step, place, last):
                if begin not in self.continued:
                    if free:
                        states[begin] = free.pop()
                elif free and self.origin(begin) != begin:
                    free.pop()
                if is_last and step.shape == "packed":
                    free.append(end)
            if step.shape == "flat":
                free += [end for _, end, is_last in _sequences(step, place, last) if is_last]
        return states


def _sequences(step: Step, place: int, last: dict[int, int]) -> Iterator[tuple[End, End, bool]]:
    """Of each span of a step: where it begins and ends, and whether its sequence has no later step."""
    for sequence, first, end in step.spans:
        yield End(sequence, first), End(sequence, end), last[sequence] == place
