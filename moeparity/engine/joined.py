"""Small steps of a schedule that go through an op in one call, with the bits that each step would have by itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from moeparity.engine.batch import Batch
from moeparity.engine.grid import Grid, Turn
from moeparity.numerics.joined_steps import BLOCKS, Steps
from moeparity.plan.schedule.steps import Span

_FEWEST = 4
"""At least this many steps are joined. Below that, the trial costs more than the calls it saves."""


class Joined:
    """The turns of a grid with small ones joined, each tuple of turns once."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        # By id. The turns are kept as well, so that their ids stay theirs.
        self._of: dict[int, tuple[tuple[Turn, ...], tuple[Turn, ...]]] = {}

    def turns(self, turns: tuple[Turn, ...]) -> tuple[Turn, ...]:
        """The turns with the small ones joined into one, which comes first. Turns that are padded or copied are not
        joined.
        """
        if id(turns) not in self._of:
            self._of[id(turns)] = turns, self._joined(turns)
        return self._of[id(turns)][1]

    def _joined(self, turns: tuple[Turn, ...]) -> tuple[Turn, ...]:
        small = [turn for turn in turns if turn.source is None and not turn.padding and _rows(turn) <= max(BLOCKS)]
        if len(small) < _FEWEST:
            return turns
        batch = self._tokens_of([turn.batch for turn in small])
        place = torch.empty(self.grid.sequences * self.grid.length, dtype=torch.int64)
        place[batch.index] = torch.arange(len(batch.index))
        places = torch.cat([place[turn.batch.index] for turn in small])
        steps = Steps(places=places, sizes=tuple(_rows(turn) for turn in small))
        apart = {id(turn) for turn in turns} - {id(turn) for turn in small}
        return (Turn(batch, small[0].phase, steps=steps), *(turn for turn in turns if id(turn) in apart))

    def _tokens_of(self, batches: Iterable[Batch]) -> Batch:
        """All tokens of these batches, as a rectangle if they form one."""
        spans: list[Span] = []
        for span in sorted(span for batch in batches for span in batch.spans):
            if spans and (span.sequence, span.first) == (spans[-1].sequence, spans[-1].last):
                spans[-1] = spans[-1]._replace(last=span.last)
            else:
                spans.append(span)
        first, last = spans[0], spans[-1]
        neighbours = [span.sequence for span in spans] == list(range(first.sequence, last.sequence + 1))
        if neighbours and all(span[1:] == first[1:] for span in spans):
            return self.grid.rectangle(first.sequence, last.sequence + 1, first.first, first.last)
        return self.grid.batch(tuple(spans), "flat")


def _rows(turn: Turn) -> int:
    return turn.batch.size[0] * turn.batch.size[1]


def joined_rows(steps: Mapping[int, int]) -> int:
    """The most rows of steps that are joined into one call; `rows` says how many steps have how many rows."""
    small = {rows: count for rows, count in steps.items() if rows <= max(BLOCKS)}
    return sum(rows * count for rows, count in small.items()) if sum(small.values()) >= _FEWEST else 0
