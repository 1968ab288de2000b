"""What a program computed together, as the steps of a schedule."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch

from moeparity.evidence.maps.placing import NOWHERE
from moeparity.plan.schedule.recorded import OF_THE_PROGRAM, phase_of
from moeparity.plan.schedule.steps import FORWARD, Positions, Schedule, Span, Step


def own_schedule(
    shapes: Sequence[tuple[int, int]], indices: Sequence[torch.Tensor], mask: torch.Tensor, last_only: Sequence[bool]
) -> Schedule | None:
    """The forwards of a program as steps on a grid of tokens, which are real where `mask` [B, T] bool is true.

    They are dense, or packs, whose sequences are taken to see themselves alone.

    shapes: sequences and tokens of each forward. indices: for each row of a forward the token b * T + t of the grid,
    int64 [b * t]. last_only: whether its head saw only the last token of each sequence. None if a forward is neither:
    if it has padding of its own at the left, padding in a pack, several packs in one forward, or another order.
    """
    spans_of = [
        _rectangle(shape, index, mask) or _pack(shape, index, mask)
        for shape, index in zip(shapes, indices, strict=True)
    ]
    forwards = [spans for spans in spans_of if spans]
    if len(forwards) < len(spans_of):
        return None
    again = len({span.sequence for spans in forwards for span in spans}) < sum(map(len, forwards))
    begun: set[int] = set()
    steps = []
    for (rows, _), spans, last in zip(shapes, forwards, last_only, strict=True):
        is_pack = len(spans) > rows
        if is_pack and last:
            return None
        steps.append(
            Step(
                spans=spans,
                shape="packed" if is_pack else "dense",
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


def _pack(shape: tuple[int, int], index: torch.Tensor, mask: torch.Tensor) -> tuple[Span, ...]:
    """Sequences from their first token on, one behind the other in a single row; nothing where it is no such row. Parts
    that go on read keys of earlier forwards, which no pack does.
    """
    if shape[0] > 1 or bool((index == NOWHERE).any()):
        return ()
    length = mask.shape[1]
    begins = (index.diff() != 1) | (index[1:] % length == 0)
    ends = [0, *begins.nonzero().flatten().add(1).tolist(), len(index)]
    pieces = [index[first:last].tolist() for first, last in pairwise(ends)]
    spans = tuple(Span(piece[0] // length, piece[0] % length, piece[-1] % length + 1) for piece in pieces)
    begin = mask.int().argmax(dim=1).tolist()
    return spans if all(span.first == begin[span.sequence] for span in spans) else ()


def _positions(forwards: Sequence[Sequence[Span]], mask: torch.Tensor) -> Positions:
    """Positions from a sequence's first token on, if the grid has padding before it that the program's rows do not
    have; else from the grid's first column on.
    """
    begin = mask.int().argmax(dim=1).tolist()
    spans = [span for spans in forwards for span in spans]
    with_padding = any(span.first < begin[span.sequence] for span in spans)
    return "tokens" if any(begin) and not with_padding else "columns"
