"""Rectangles [b, t]: a trainer's micro-batches, and `generate` of transformers.

`generate` (read: transformers 5.23.0, generation/utils.py `_prefill` and `_sample`) prefills the padded prompts of a
batch, whole or `prefill_chunk_size` columns at a time, then computes one column of all its sequences per step, padding
of those that are done included, until all are. Its head sees each sequence's last column only (`logits_to_keep` is 1).
"""

from __future__ import annotations

from moeparity.errors import SpecError, Where, counted
from moeparity.plan.schedule.settings import ScheduleSettings
from moeparity.plan.schedule.steps import Phase, Step, rectangle
from moeparity.plan.schedule.token_grid import StepList, TokenGrid


def rectangles(settings: ScheduleSettings, grid: TokenGrid, steps: StepList, *, prefilled: bool = False) -> None:
    """Add the steps of one batch after another. With `prefilled`, the columns before a batch's first decoded one have
    steps already.
    """
    for first, last in batches(settings, grid):
        boundary, end = columns(settings, grid, first, last)
        is_decoded = settings.start is not None
        if not prefilled:
            width = boundary if settings.chunk is None else settings.chunk
            for start in range(0, boundary, width):
                stop = min(start + width, boundary)
                phase: Phase = "chunk" if width < boundary else "prefill" if is_decoded else "forward"
                scored = tuple(range(last - first)) if is_decoded else None
                steps.add(_step(first, last, start, stop, phase, scored))
        drafted = settings.verify + 1
        for start in range(boundary, end, drafted):
            stop = min(start + drafted, end)
            steps.add(_step(first, last, start, stop, "decode" if stop - start == 1 else "verify", None))


def batches(settings: ScheduleSettings, grid: TokenGrid) -> list[tuple[int, int]]:
    """The sequences (first, last + 1) of each batch."""
    size = grid.sequences if settings.batch is None else settings.batch
    return [(first, min(first + size, grid.sequences)) for first in range(0, grid.sequences, size)]


def columns(settings: ScheduleSettings, grid: TokenGrid, first: int, last: int) -> tuple[int, int]:
    """The columns that a batch decodes: first, and last + 1. Both are the grid's length where it decodes nothing.

    Where prompts end at several columns (impossible in `generate`, but a mixture of two schedules may have it) the
    earliest counts.
    """
    if settings.start is None:
        return grid.length, grid.length
    there = [sequence for sequence in range(first, last) if grid.tokens(sequence)]
    ends = [grid.prompt_end(sequence, settings.start) for sequence in there]
    last_columns = [grid.spans[sequence][1] for sequence in there]
    return (min(ends), max(last_columns)) if there else (0, 0)


def refuse_ragged(settings: ScheduleSettings, grid: TokenGrid, where: Where) -> None:
    """Raises SpecError where prompts of one batch end at several columns, which is impossible in `generate`."""
    if settings.start is None:
        return
    for first, last in batches(settings, grid):
        there = [sequence for sequence in range(first, last) if grid.tokens(sequence)]
        ends = {grid.prompt_end(sequence, settings.start): sequence for sequence in reversed(there)}
        if len(ends) > 1:
            (near, row_a), *_, (far, row_b) = sorted(ends.items())
            raise SpecError(
                f"{where}: sequences {row_a} and {row_b} of one batch are prefilled to columns {near} and {far}; "
                "expected one column for all, as `generate` pads prompts at their left. Pad the tokens with `padding: "
                f"left`, decode in smaller batches than {counted(last - first, 'sequence')}, or name a server's `rule`."
            )


def _step(first: int, last: int, start: int, end: int, phase: Phase, scored: tuple[int, ...] | None) -> Step:
    step = rectangle(first, last, start, end, phase)
    return step if scored is None else Step(spans=step.spans, phase=phase, scored=scored)
