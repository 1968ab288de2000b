"""Which sequences go through an op together: the micro-batches of a variant, and the cells several variants share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

Rows = tuple[int, int]
"""Sequences first..last+1 that are computed together."""


def micro_batches(sequences: int, size: int) -> tuple[Rows, ...]:
    """Consecutive blocks of `size` sequences; the last may be smaller."""
    return tuple((start, min(start + size, sequences)) for start in range(0, sequences, size))


def cells(schedules: Iterable[Sequence[Rows]]) -> tuple[Rows, ...]:
    """The finest blocks: cut wherever any schedule cuts. Values are compared cell by cell."""
    edges = sorted({edge for schedule in schedules for rows in schedule for edge in rows})
    return tuple(pairwise(edges))


def waves(schedules: Sequence[Sequence[Rows]]) -> tuple[Rows, ...]:
    """The coarsest independent blocks: cut only where every schedule cuts. A wave is computed from end to end."""
    common = set.intersection(*({edge for rows in schedule for edge in rows} for schedule in schedules))
    edges = sorted(common)
    return tuple(pairwise(edges))


def inside(rows: Sequence[Rows], outer: Rows) -> tuple[Rows, ...]:
    """The blocks that lie inside `outer`."""
    return tuple(r for r in rows if outer[0] <= r[0] and r[1] <= outer[1])
