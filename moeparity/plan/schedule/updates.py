"""Updates of the weights while sequences are computed: which weights each step runs on, and what a cache computed anew
would be.

A step runs on one version of the weights. The rows before an update are computed on older weights, and what they leave
in the cache stays: rows behind it read keys that are older than their own weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from typing import NamedTuple

from moeparity.errors import SpecError, Where, counted
from moeparity.plan.schedule.settings import ScheduleSettings
from moeparity.plan.schedule.steps import Phase, Schedule, Span, Step, with_spans
from moeparity.plan.schedule.token_grid import TokenGrid, missing_tokens
from moeparity.plan.spec.scheduling import BEHIND, At

Columns = Sequence[Sequence[int]]
"""For each sequence the columns at which its updates come in, in their order."""


def update_columns(settings: ScheduleSettings, grid: TokenGrid) -> Columns:
    """Where the updates of a schedule come in: in each sequence the column of the first row on the new weights.

    Padding goes with the tokens: all columns are on the new weights where all tokens are, and none where none is.
    """
    at = _positions(settings, grid)
    return [
        [0 if token == 0 else grid.length if token == last - first else first + token for token in of_sequence]
        for of_sequence, (first, last) in zip(at, grid.spans, strict=True)
    ]


def _positions(settings: ScheduleSettings, grid: TokenGrid) -> list[list[int]]:
    """For each sequence the tokens at which its updates come in."""
    at = [_of_each(update, grid) for update in settings.updates]
    return [[update[sequence] for update in at] for sequence in range(grid.sequences)]


def _of_each(at: At, grid: TokenGrid) -> Sequence[int]:
    """The token of each sequence at which an update comes in."""
    if isinstance(at, tuple):
        return at
    behind = BEHIND.fullmatch(at) if isinstance(at, str) else None
    return [int(at) if behind is None else prompt + int(behind[1]) for prompt in grid.prompts]


def refuse_other_sequences(settings: ScheduleSettings, grid: TokenGrid, where: Where) -> None:
    """Raises SpecError for updates with positions of another number of sequences."""
    for update in settings.updates:
        if isinstance(update, tuple) and len(update) != grid.sequences:
            raise SpecError(
                f"{where}: updates.at names {counted(len(update), 'position')} of an update; expected one number, or "
                f"one for each of the {counted(grid.sequences, 'sequence')} of the tokens."
            )


def refuse_outside(settings: ScheduleSettings, grid: TokenGrid, where: Where) -> None:
    """Raises SpecError for updates that do not fit the tokens: of other sequences, outside of one, or going back."""
    refuse_other_sequences(settings, grid, where)
    for sequence, tokens in enumerate(_positions(settings, grid)):
        most = grid.tokens(sequence)
        outside = next((token for token in tokens if token > most), None)
        if outside is not None:
            raise SpecError(
                f"{where}: updates.at places an update at token {outside} of sequence {sequence}, which has "
                f"{counted(most, 'token')}; expected 0 (all of it runs on the new weights) to {most} (none does)."
            )
        back = next(((a, b) for a, b in pairwise(tokens) if b < a), None)
        if back is not None:
            raise SpecError(
                f"{where}: updates.at goes back in sequence {sequence}: an update at token {back[1]} follows one at "
                f"{back[0]}; expected positions that do not descend, the oldest update first."
            )


def other_versions(updates: int, versions: int, where: Where) -> SpecError:
    """The error for a schedule of so many updates where a recipe has so many earlier `versions` of the weights."""
    return SpecError(
        f"{where}: the schedule places {counted(updates, 'update')} of the weights, and `earlier` has "
        f"{counted(versions, 'version')} of them; expected the weights before each update, the latest first."
    )


def on_versions(steps: Iterable[Step], of: Columns, ends: Sequence[int] | None = None) -> Iterator[Step]:
    """The steps, each with the lag of its weights. A step that would have rows of several versions is cut into one for
    each, the oldest first. `ends` has for each sequence the column behind its last token: what a step computes behind
    it is on the latest weights of the step's other rows.
    """
    for step in steps:
        done = [ends is not None and span.first >= ends[span.sequence] for span in step.spans]
        parts = [list(_versions(span, of[span.sequence])) for span in step.spans]
        lags = {lag for of_span, is_done in zip(parts, done, strict=True) for lag, _ in of_span if not is_done}
        latest = min(lags, default=0)
        if len(lags) <= 1:
            yield replace(step, lag=latest)
            continue
        together = zip(step.spans, parts, done, strict=True)
        yield from _cut(step, [[(latest, span)] if is_done else of_span for span, of_span, is_done in together])


def _versions(span: Span, columns: Sequence[int]) -> Iterator[tuple[int, Span]]:
    """The parts of a span that run on one version each, with the lag of that."""
    edges = [span.first, *(min(max(column, span.first), span.last) for column in columns), span.last]
    for passed, (first, last) in enumerate(pairwise(edges)):
        if first < last:
            yield len(columns) - passed, span._replace(first=first, last=last)


def _cut(step: Step, parts_of: Sequence[Sequence[tuple[int, Span]]]) -> list[Step]:
    """The step in pieces; `parts_of` has the parts of each of its spans, with their lags."""
    parts = [(lag, place, part) for place, of_span in enumerate(parts_of) for lag, part in of_span]
    pieces: list[Step] = []
    for lag in sorted({lag for lag, *_ in parts}, reverse=True):
        there = [(place, part) for part_lag, place, part in parts if part_lag == lag]
        for run in _rectangles(there) if step.shape == "dense" else [there]:
            spans = tuple(part for _, part in run)
            whole = with_spans(step, [place for place, _ in run])
            is_cut = spans != whole.spans
            phase: Phase = "chunk" if is_cut and step.phase in ("forward", "prefill") else step.phase
            shape = "flat" if step.shape == "packed" else step.shape
            pieces.append(replace(whole, spans=spans, phase=phase, shape=shape, padding=0, copies=(), lag=lag))
    pieces[0] = replace(pieces[0], copies=step.copies)
    pieces[-1] = replace(pieces[-1], padding=step.padding)
    return pieces


def _rectangles(parts: Sequence[tuple[int, Span]]) -> Iterator[list[tuple[int, Span]]]:
    """Runs of neighbouring sequences with the same columns."""
    keyed = [(span.sequence - number, span[1:], (place, span)) for number, (place, span) in enumerate(parts)]
    for _, run in groupby(keyed, key=lambda part: part[:2]):
        yield [part for *_, part in run]


def recomputed(schedule: Schedule, lag: int, sequences: int, length: int) -> Schedule:
    """The steps over a grid [sequences, length] that run on the weights `lag` updates back and on later ones, behind a
    prefill of all that was computed before, one for all running sequences; everything on the weights `lag` updates
    back.

    This is what a server runs that computes its cache anew when these weights come in. Sequences that were done by then
    are computed beside it, since every token of the grid has values.
    """
    later = [step for step in schedule.steps if step.lag <= lag and not step.filler]
    fillers = [step for step in schedule.steps if step.filler]
    running = {span.sequence for step in later for span in step.spans}
    missing = [span for spans in missing_tokens([*later, *fillers], sequences, length) for span in spans]
    is_dense = all(step.shape == "dense" for step in later)
    before = [
        step
        for is_running in (False, True)
        for step in _prefills([span for span in missing if (span.sequence in running) == is_running], dense=is_dense)
    ]
    steps = tuple(replace(step, lag=lag) for step in (*before, *later, *fillers))
    return replace(schedule, steps=steps, recomputes=False)


def _prefills(spans: Sequence[Span], *, dense: bool) -> list[Step]:
    """A prefill of these spans: one flat step, or as few rectangles as there are."""
    runs = [[span for _, span in run] for run in _rectangles(list(enumerate(spans)))] if dense else [list(spans)]
    return [Step(spans=tuple(run), shape="dense" if dense else "flat", phase="prefill") for run in runs if run]


def all_on(schedule: Schedule, lag: int) -> Schedule:
    """The same steps, all on the weights `lag` updates back."""
    return replace(schedule, steps=tuple(replace(step, lag=lag) for step in schedule.steps), recomputes=False)


class Ages(NamedTuple):
    """What each row of a grid [B, T] was computed with: `lag`, how many updates back its own weights are, and
    `oldest_key`, the same of the oldest key that it reads. A row whose oldest key is older than its weights has stale
    keys. 0 at fillers.
    """

    lag: list[list[int]]
    oldest_key: list[list[int]]


def ages(schedule: Schedule, sequences: int, length: int) -> Ages:
    """The ages of all rows. A copied row has the weights of the row that it was copied of."""
    lag = [[0] * length for _ in range(sequences)]
    first = [length] * sequences
    for step in schedule.steps:
        if step.filler:
            continue
        for span in step.spans:
            lag[span.sequence][span.first : span.last] = [step.lag] * span.tokens
        for copy in step.copies:
            columns = range(copy.first + copy.shift, copy.last + copy.shift)
            lag[copy.sequence][copy.first : copy.last] = [lag[copy.source][column] for column in columns]
        for part in step.parts:
            first[part.sequence] = min(first[part.sequence], part.first)
    oldest = [[0] * length for _ in range(sequences)]
    for sequence, row in enumerate(lag):
        for column in range(first[sequence], length):
            has_earlier = column > first[sequence] and not schedule.recomputes
            before = oldest[sequence][column - 1] if has_earlier else 0
            oldest[sequence][column] = max(before, row[column])
    return Ages(lag, oldest)
