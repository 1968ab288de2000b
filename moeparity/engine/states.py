"""The states that the steps of walkers hand on at one node: rows at ends of spans, which live as long as the visit."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import torch

from moeparity.engine.batch import Batch
from moeparity.engine.carried import Carried, Row
from moeparity.engine.task import Task
from moeparity.engine.values import Identities
from moeparity.engine.walker import WalkerName
from moeparity.ops.attribute import RefusedError
from moeparity.ops.state import BLOCK
from moeparity.plan.schedule.borders import Borders, Columns, End
from moeparity.plan.schedule.steps import Span


class Givers(NamedTuple):
    """The walkers from whose states a walker begins its steps: `always`, but for steps whose weights have a lag in
    `by_lag`.
    """

    always: WalkerName
    by_lag: Mapping[int, WalkerName]


class Handed:
    """What one walker's steps hand on at a node in one wave.

    columns: by sequence, where somebody takes a state over, for each of some schedules. giver: whose states this walker
        begins its steps from, if not its own: a shadow takes those of its source, rounded as the shadow's own numerics
        say. So it shows what a border changes, and not what was carried over it. by_lag: others for steps whose weights
        have these lags.
    """

    def __init__(
        self,
        borders: Borders,
        columns: Iterable[Columns] = (),
        giver: Handed | None = None,
        by_lag: Mapping[int, Handed] | None = None,
    ) -> None:
        self.borders, self.columns, self.giver, self.by_lag = borders, tuple(columns), giver or self, by_lag or {}
        self.rows: dict[End, Row] = {}

    def carried(self, queries: Batch, lag: int, *, resets: bool) -> Carried:
        """What a call for these tokens takes over and hands on. lag: that of their weights. resets: whether a sequence
        that begins does so without what another one left.
        """
        firsts = queries.spans if queries.rectangle is not None else queries.spans[:1]
        ends = [self._before(span, resets=resets) for span in firsts]
        giver = self.by_lag.get(lag, self.giver)
        rows = tuple(None if end is None else self._row_before(giver, end) for end in ends)
        cached = tuple(end is not None and self.borders.origin(end) != end for end in ends)
        return Carried(rows, cached, self._ends_within(queries))

    def _before(self, span: Span, *, resets: bool) -> End | None:
        end = self.borders.before(span)
        return end if resets or end is not None else self.borders.unreset.get(End(span.sequence, span.first))

    def _row_before(self, giver: Handed, end: End) -> Row:
        row = giver.rows.get(giver.borders.origin(self.borders.origin(end)))
        if row is None:
            raise RefusedError(
                BLOCK,
                f"sequence {end.sequence} goes on at token {end.column} from tokens that are copied of a sequence "
                "which the schedule computes later. Expected the source of a copy in an earlier span.",
            )
        return row

    def take(self, rows: Iterable[Row]) -> None:
        """Keep what a call handed on."""
        self.rows.update((row.end, row) for row in rows)

    def _ends_within(self, queries: Batch) -> dict[int, list[End]]:
        at, before = queries.rectangle, 0
        ends: dict[int, list[End]] = {}
        for sequence, first, last in queries.spans:
            of_sequence = (columns[sequence] for columns in self.columns if sequence in columns)
            for column in chain.from_iterable(c[bisect_right(c, first) : bisect_right(c, last)] for c in of_sequence):
                sequences = (sequence,) if at is None else range(at.first, at.last)
                ends[before + column - first] = [End(each, column) for each in sequences]
            before += last - first if at is None else 0
        return dict(sorted(ends.items()))


def handed_at(
    working: Mapping[WalkerName, tuple[Givers, Task]], borders: Mapping[WalkerName, Borders]
) -> dict[WalkerName, Handed]:
    """What walkers hand on at a node, by walker: `working` are those that compute it, givers before those that take
    from them, each with its givers and its task; `borders` are those of their schedules.
    """
    columns: dict[WalkerName, list[Columns]] = {name: [] for name in working}
    for name, (givers, task) in working.items():
        resets = all(of_phase.numerics.resets for of_phase in task.every)
        for giver in dict.fromkeys((givers.always, *givers.by_lag.values())):
            columns[giver].append(borders[name].taken_of(borders[giver], resets=resets))
    handed: dict[WalkerName, Handed] = {}
    for name, (givers, _) in working.items():
        by_lag = {lag: handed[giver] for lag, giver in givers.by_lag.items()}
        handed[name] = Handed(borders[name], columns[name], handed.get(givers.always), by_lag)
    return handed


def rows_of(state: torch.Tensor, ends: Sequence[End], queries: Batch, identities: Identities) -> list[Row]:
    """The rows of a state [B, ...] of a call, one for each of these ends, which are of one column, with identities."""
    states = state.clone(memory_format=torch.contiguous_format)
    column, first, last = ends[0].column, ends[0].sequence, ends[-1].sequence + 1
    batch = queries.grid.rectangle(first, last, column - 1, column)
    numbers, cells = identities.block(states.unsqueeze(1), batch).ids, batch.cell_of.tolist()
    return [Row(states[place], end, numbers[cells[place]]) for place, end in enumerate(ends)]
