"""What a program computed together, as the steps of a schedule."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from moeparity.evidence.maps.placing import NOWHERE
from moeparity.plan.schedule.recorded import OF_THE_PROGRAM, phase_of
from moeparity.plan.schedule.steps import FORWARD, Positions, Schedule, Span, Step


def own_schedule(
    shapes: Sequence[tuple[int, int]], indices: Sequence[torch.Tensor], mask: torch.Tensor, last_only: Sequence[bool]
) -> Schedule | None:
    """The forwards of a program as dense steps on a grid of tokens, which are real where `mask` [B, T] bool is true.

    shapes: sequences and tokens of each forward. indices: for each row of a forward the token b * T + t of the grid,
    int64 [b * t]. last_only: whether its head saw only the last token of each sequence. None if a forward is no
    rectangle of the grid: if it has padding of its own at the left, several sequences in a row, or another order.
    """
    rectangles = [_rectangle(shape, index, mask) for shape, index in zip(shapes, indices, strict=True)]
    forwards = [spans for spans in rectangles if spans is not None]
    if len(forwards) < len(rectangles):
        return None
    again = len({span.sequence for spans in forwards for span in spans}) < sum(map(len, forwards))
    begun: set[int] = set()
    steps = []
    for spans, last in zip(forwards, last_only, strict=True):
        steps.append(
            Step(
                spans=spans,
                phase=phase_of(spans, begun) if again else FORWARD,
                scored=tuple(range(len(spans))) if last else None,
            )
        )
        begun.update(span.sequence for span in spans)
    return Schedule(steps=tuple(steps), positions=_positions(forwards, mask), name=OF_THE_PROGRAM)


def _rectangle(shape: tuple[int, int], index: torch.Tensor, mask: torch.Tensor) -> tuple[Span, ...] | None:
    """The same columns of consecutive sequences; rows may end in padding of the program's, where the grid has some."""
    length = mask.shape[1]
    rows = index.view(shape)
    sequence, first = divmod(int(rows[0, 0]), length)
    spans = tuple(Span(sequence + slot, first, first + shape[1]) for slot in range(shape[0]))
    if rows[0, 0] == NOWHERE or spans[-1].sequence >= len(mask) or spans[0].last > length:
        return None
    for span, row in zip(spans, rows, strict=True):
        columns = torch.arange(span.first, span.last)
        there = row != NOWHERE
        if bool((row[there] != span.sequence * length + columns[there]).any()):
            return None
        if bool(mask[span.sequence, columns[~there]].any()) or not bool(there[0]):
            return None
    return spans


def _positions(forwards: Sequence[Sequence[Span]], mask: torch.Tensor) -> Positions:
    """Positions from a sequence's first token on, if the grid has padding before it that the program's rows do not
    have; else from the grid's first column on.
    """
    begin = mask.int().argmax(dim=1).tolist()
    spans = [span for spans in forwards for span in spans]
    with_padding = any(span.first < begin[span.sequence] for span in spans)
    return "tokens" if any(begin) and not with_padding else "columns"
