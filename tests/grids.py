"""Values on a small grid, for tests of what looks at them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import pairwise

from torch import Tensor

from moeparity.engine.grid import Grid
from moeparity.engine.values import Block
from moeparity.plan.schedule.steps import Schedule, rectangle


@cache
def grid(length: int, *edges: int) -> Grid:
    """Sequences of so many tokens, cut at these edges; the same one for the same edges."""
    steps = tuple(rectangle(first, last, 0, length) for first, last in pairwise(edges))
    return Grid(edges[-1], length, [Schedule(steps=steps)])


def block(value: Tensor, first: int, ids: Sequence[int], cut: Grid, *, partials: int = 1, axis: int = 1) -> Block:
    """A value of the sequences from `first` on."""
    batch = cut.rectangle(first, first + len(value), 0, cut.length)
    return Block(value, batch, tuple(ids), partials, axis)
