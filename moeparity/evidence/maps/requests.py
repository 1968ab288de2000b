"""Which sequences of a grid the requests of a server's batches are, and its steps as those of a schedule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from moeparity.evidence.maps.forwards import Forward
from moeparity.evidence.maps.placing import NOWHERE
from moeparity.plan.schedule.recorded import OF_THE_PROGRAM, phase_of
from moeparity.plan.schedule.steps import Copy, Schedule, Span, Step


class Part(NamedTuple):
    """Tokens of one run in a forward: so many `tokens` from position `first` on, in rows from `row` on. `request` is
    what the server calls it.

    A run is a request from its start on. One that was preempted, and is computed anew, is another run.
    """

    run: int
    first: int
    row: int
    tokens: int
    request: str


def parts_of(ways: Sequence[Forward]) -> list[tuple[Part, ...]]:
    """Of each forward of a server the tokens of each run, in the order of their rows."""
    ahead: dict[str, tuple[int, int]] = {}
    runs, every = 0, []
    for way in ways:
        parts, row = list[Part](), 0
        for request, first, count in way.spans:
            run, following = ahead.get(request, (0, -1))
            if first != following:
                run, runs = runs, runs + 1
            ahead[request] = run, first + count
            parts.append(Part(run, first, row, count, request))
            row += count
        every.append(tuple(parts))
    return every


class Requests:
    """The runs of a server's forwards on a grid of ids [B, T] int64, whose tokens are real where `mask` [B, T] bool is
    true. A run is the first sequence with the same tokens that no run before it is.
    """

    def __init__(self, ways: Sequence[Forward], ids: torch.Tensor, mask: torch.Tensor) -> None:
        self._ways, self._length = ways, ids.shape[1]
        self._parts = parts_of(ways)
        self._columns: list[torch.Tensor] = [row.nonzero().flatten() for row in mask]
        self._real = [row[real] for row, real in zip(ids, mask, strict=True)]
        self._sequences: dict[int, int] = {}
        for run, (first, tokens) in sorted(self._tokens().items()):
            free = (s for s in range(len(ids)) if s not in self._sequences.values())
            sequence = next((s for s in free if _has(self._real[s], first, tokens)), None)
            if sequence is not None:
                self._sequences[run] = sequence

    def indices(self) -> list[torch.Tensor]:
        """Of each row of each forward the token b * T + t of the grid, int64 [n]."""
        every = []
        for way, parts in zip(self._ways, self._parts, strict=True):
            index = torch.full((way.ids.numel(),), NOWHERE)
            for part in parts:
                if part.run in self._sequences:
                    columns = self._shown(part)
                    index[part.row : part.row + len(columns)] = columns + self._sequences[part.run] * self._length
            every.append(index)
        return every

    @property
    def names(self) -> dict[int, str]:
        """What the server called each sequence."""
        requests = {part.run: part.request for parts in self._parts for part in parts}
        return {sequence: requests[run] for run, sequence in self._sequences.items()}

    def schedule(self) -> Schedule | None:
        """The forwards as flat steps. Rows of tokens that the grid has not are padding; tokens that a prefix cache gave
        are copies. None if it is not known whose tokens the cache held.
        """
        steps, done = list[Step](), [0] * len(self._real)
        for way, parts in zip(self._ways, self._parts, strict=True):
            begun = {sequence for sequence, tokens in enumerate(done) if tokens}
            spans, copies = list[Span](), list[Copy]()
            for part in parts:
                columns = self._shown(part)
                if not len(columns):
                    continue
                sequence = self._sequences[part.run]
                if not done[sequence] and part.first:
                    source = self._source(sequence, part.first, done)
                    if source is None:
                        return None
                    begin, there = int(self._columns[sequence][0]), int(self._columns[source][0])
                    copies.append(Copy(sequence, begin, begin + part.first, source, there - begin))
                spans.append(Span(sequence, int(columns[0]), int(columns[-1]) + 1))
                done[sequence] = part.first + len(columns)
            if spans:
                padding = way.ids.numel() - sum(span.tokens for span in spans)
                scored, phase = tuple(range(len(spans))), phase_of(tuple(spans), begun)
                steps.append(
                    Step(
                        spans=tuple(spans), shape="flat", phase=phase, scored=scored, padding=padding,
                        copies=tuple(copies),
                    )
                )  # fmt: skip
        return Schedule(steps=tuple(steps), positions="tokens", name=OF_THE_PROGRAM)

    def _tokens(self) -> dict[int, tuple[int, torch.Tensor]]:
        """Of each run the position that it begins at, and its tokens."""
        first_of, pieces = dict[int, int](), dict[int, list[torch.Tensor]]()
        for way, parts in zip(self._ways, self._parts, strict=True):
            for part in parts:
                first_of.setdefault(part.run, part.first)
                pieces.setdefault(part.run, []).append(way.ids[0, part.row : part.row + part.tokens])
        return {run: (first, torch.cat(pieces[run])) for run, first in first_of.items()}

    def _shown(self, part: Part) -> torch.Tensor:
        """The columns of those of its tokens that the grid has."""
        if part.run not in self._sequences:
            return torch.zeros(0, dtype=torch.int64)
        columns = self._columns[self._sequences[part.run]]
        return columns[part.first : part.first + part.tokens]

    def _source(self, sequence: int, cached: int, done: Sequence[int]) -> int | None:
        """The first sequence that has computed the same first tokens by now."""
        prefix = self._real[sequence][:cached]
        others = (s for s, tokens in enumerate(done) if tokens >= cached and s != sequence)
        return next((s for s in others if torch.equal(self._real[s][:cached], prefix)), None)


def _has(real: torch.Tensor, first: int, tokens: torch.Tensor) -> bool:
    """Whether a sequence has these tokens from a position on, as far as it goes."""
    shown = real[first : first + len(tokens)]
    return len(shown) > 0 and torch.equal(shown, tokens[: len(shown)])
