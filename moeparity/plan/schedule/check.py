"""Checks that a schedule fits a grid of tokens, before anything is computed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Final

from moeparity.errors import SpecError, Where, counted
from moeparity.paths import limit
from moeparity.plan.schedule.steps import Copy, Schedule, Span, Step
from moeparity.plan.schedule.token_grid import MOST_STEPS, TokenGrid, refuse_more

MOST_PADDING: Final = 65_536
"""The most padding rows a step may have."""


def refuse(schedule: Schedule, grid: TokenGrid, where: Where) -> None:
    """Raises SpecError unless the steps compute each token of the grid exactly once, and no token before its keys.

    Padding and each sequence's last token may be missing. Only the first problem is reported; step N is line N of the
    file `where`.
    """
    refuse_more(len(schedule.steps), limit(MOST_STEPS), where)
    progress = _Progress(grid)
    for number, step in enumerate(schedule.steps, start=1):
        for problem in chain(_of_the_grid(step, grid), _of_the_shape(step, grid), progress.problems(step)):
            raise SpecError(f"{Where(where.path, number)}: {problem}")
    for problem in progress.gaps():
        raise SpecError(f"{where}: {problem}")


class _Progress:
    """How far the steps so far have come with each sequence."""

    def __init__(self, grid: TokenGrid) -> None:
        self.grid = grid
        self.ends = [0] * grid.sequences

    def problems(self, step: Step) -> Iterator[str]:
        """What is wrong with the next step: tokens that were computed before, or that come before their keys. Then
        counts the step as made.
        """
        for part in step.parts:
            end = self.ends[part.sequence]
            first, last = self.grid.spans[part.sequence]
            if part.first < end:
                yield (
                    f"sequence {part.sequence}: token {part.first} is computed twice; expected each token in one step. "
                    f"{_why_twice(part.first <= first, end)}"
                )
            if max(end, first) < min(part.first, last):
                yield (
                    f"sequence {part.sequence}: token {part.first} comes before its keys: no step so far has token "
                    f"{max(end, first)}. Expected the steps of a sequence in the order of its tokens."
                )
            self.ends[part.sequence] = part.last
        for copy in step.copies:
            if self.ends[copy.source] < copy.last + copy.shift:
                yield (
                    f"sequence {copy.sequence}: tokens {copy.first} to {copy.last - 1} are copied of sequence "
                    f"{copy.source} before that has them. Expected them in this step or before."
                )

    def gaps(self) -> Iterator[str]:
        """The tokens that are in no step."""
        for sequence, (first, last) in enumerate(self.grid.spans):
            end = max(self.ends[sequence], first)
            if end < last - 1:
                yield (
                    f"sequence {sequence}: no step has token {end}; expected all of {first} to {last - 2} (the last "
                    "may be left out, since engines sample it and do not compute it). Add a step."
                )


def _why_twice(from_its_first: bool, end: int) -> str:
    """What to do about a span that begins before the end of what was computed."""
    if from_its_first:
        return (
            "A request that was preempted, and is computed anew, is two sequences here: one that ends where it was "
            f"stopped, and one whose prompt ends there. Else begin this span at {end}, or leave it out."
        )
    return (
        "Drafted tokens that were rejected are no tokens of the sequence: end the span that verified them behind the "
        f"last that was taken, and count them as `padding`. Else begin this span at {end}, or leave it out."
    )


def _of_the_grid(step: Step, grid: TokenGrid) -> Iterator[str]:
    """What of a step does not fit the grid: sequences or tokens that do not exist, copies of other tokens, and a
    sequence that is in the step twice.
    """
    if not step.spans:
        yield "there is no span; expected the tokens of this step, at least one."
    for part in step.parts:
        if part.sequence >= grid.sequences:
            yield (
                f"there is no sequence {part.sequence}; the tokens have {counted(grid.sequences, 'sequence')}, "
                "numbered from 0."
            )
        if not part.first < part.last <= grid.length:
            yield (
                f"[{part.sequence}, {part.first}, {part.last}] is no span of the grid; expected [sequence, first, "
                f"last + 1] with first < last + 1 <= {grid.length}."
            )
    for copy in step.copies:
        if step.stale and not _are_other_tokens(copy, grid):
            continue
        if _is_another_prefix(copy, grid):
            yield (
                f"sequence {copy.sequence}: tokens {copy.first} to {copy.last - 1} are copied of sequence "
                f"{copy.source}, which begins with other tokens; expected the same tokens from the first one on."
            )
    there: set[int] = set()
    for span in step.spans:
        if span.sequence in there:
            yield f"sequence {span.sequence} has two spans; expected one in a step. Join them, or make two steps."
        there.add(span.sequence)
    places = len(step.spans)
    for place in (*(step.scored or ()), *step.verified):
        if place >= places:
            yield f"place {place} of `scored` or `verified` is none of the {counted(places, 'span')}, counted from 0."


def _is_another_prefix(copy: Copy, grid: TokenGrid) -> bool:
    if copy.source >= grid.sequences or copy.source == copy.sequence:
        return True
    first, start = grid.spans[copy.sequence][0], grid.spans[copy.source][0]
    if copy.shift != start - first or copy.first < first or copy.last + copy.shift > grid.length:
        return True
    if grid.ids is None:
        return False
    return grid.ids[copy.sequence][first : copy.last] != grid.ids[copy.source][start : copy.last + copy.shift]


def _are_other_tokens(copy: Copy, grid: TokenGrid) -> bool:
    """Whether tokens are copied that are others, whatever stands before them."""
    if copy.source >= grid.sequences or copy.source == copy.sequence:
        return True
    first, last = copy.first + copy.shift, copy.last + copy.shift
    start, end = grid.spans[copy.source]
    if not start <= first < last <= end:
        return True
    return grid.ids is not None and (
        grid.ids[copy.sequence][copy.first : copy.last] != grid.ids[copy.source][first:last]
    )


def _of_the_shape(step: Step, grid: TokenGrid) -> Iterator[str]:
    """What of a step its shape or phase does not allow."""
    first, sequences = step.spans[0], [span.sequence for span in step.spans]
    if step.shape == "dense":
        yield from _of_a_rectangle(step, first, sequences)
    if step.shape == "packed":
        late = next((span for span in step.spans if span.first != grid.spans[span.sequence][0]), None)
        if late is not None:
            yield (
                f"packed, sequence {late.sequence}: the span starts at {late.first}; expected the sequence's first "
                f"token, {grid.spans[late.sequence][0]}. Say `shape` flat."
            )
    if step.padding and step.shape != "flat":
        yield f"{step.shape} with {counted(step.padding, 'padding row')}; expected them in flat steps only."
    if step.padding > MOST_PADDING:
        yield f"{counted(step.padding, 'padding row')}; expected at most {MOST_PADDING:,}."
    if step.phase == "decode" and any(span.tokens > 1 for span in step.spans):
        long = next(span for span in step.spans if span.tokens > 1)
        yield (
            f"decode, sequence {long.sequence}: {counted(long.tokens, 'token')}; expected one of each sequence. Say "
            "`phase` verify where they were drafted, chunk where they are of a prompt."
        )


def _of_a_rectangle(step: Step, first: Span, sequences: list[int]) -> Iterator[str]:
    unlike = next((span for span in step.spans if span[1:] != first[1:]), None)
    if unlike is not None:
        yield (
            f"dense, but sequence {first.sequence} has tokens {first.first} to {first.last - 1} and sequence "
            f"{unlike.sequence} {unlike.first} to {unlike.last - 1}; expected the same of each. Say `shape` flat."
        )
    if sequences != list(range(first.sequence, first.sequence + len(sequences))):
        yield (
            f"dense, of sequences {', '.join(map(str, sequences[:8]))}{', ...' if len(sequences) > 8 else ''}; "
            "expected consecutive ones. Say `shape` flat."
        )
