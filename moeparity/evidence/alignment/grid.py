"""Which tokens of a grid a program's rows are, by the ids of its sequences; and what it computed together, as the steps
of a schedule.
"""

from __future__ import annotations

from collections.abc import Sequence as Listed
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from moeparity.evidence.alignment.streams import by_pass, streams
from moeparity.evidence.alignment.tokens import Sequence, Tokens
from moeparity.plan.schedule.recorded import OF_THE_PROGRAM, phase_of
from moeparity.plan.schedule.steps import FORWARD, Copy, Positions, Schedule, Span, Step

NOWHERE: Final = -1
"""In place of a token of the grid: the row is of none, as padding of the program's own is."""


class OnGrid:
    """The passes of a program on a grid of ids [B, T] int64, whose tokens are real where `mask` [B, T] bool is true.

    passes: of each pass its ids, and its tokens. A stream is the first sequence of the grid with the same tokens that
    no stream before it is: if several have the same tokens, the first counts. Where a program takes padding for tokens,
    its whole row is that of the grid.
    """

    def __init__(self, passes: Listed[tuple[Tensor, Tokens]], ids: Tensor, mask: Tensor) -> None:
        self._passes, self._grid, self._mask = passes, ids, mask
        self._real = [row.nonzero().flatten() for row in mask]
        self._streams = streams([tokens for _, tokens in passes])
        self._parts = by_pass(self._streams, len(passes))
        self._columns: dict[int, tuple[int, Tensor]] = {}
        every = torch.arange(ids.shape[1])
        for run, stream in enumerate(self._streams):
            used = {sequence for sequence, _ in self._columns.values()}
            free = [sequence for sequence in range(len(ids)) if sequence not in used]
            fitting = (
                (sequence, columns)
                for sequence in free
                for columns in (self._real[sequence], every)
                if _has(ids[sequence][columns], stream.start, stream.ids)
            )
            if (place := next(fitting, None)) is not None:
                self._columns[run] = place

    def indices(self) -> list[Tensor]:
        """Of each row of each pass the token b * T + t of the grid, int64 [n]."""
        every = []
        for (ids, tokens), parts in zip(self._passes, self._parts, strict=True):
            index, length = torch.full((ids.numel(),), NOWHERE), self._grid.shape[1]
            for run, part in parts:
                columns = self._shown(run, part)
                if not len(columns):
                    continue
                sequence = self._columns[run][0]
                index[list(part.places[: len(columns)])] = columns + sequence * length
                row = part.places[0] // tokens.grid[-1]
                if torch.equal(ids.view(tokens.size)[row], self._grid[sequence]):
                    index.view(tokens.size)[row] = torch.arange(length) + sequence * length
            every.append(index)
        return every

    @property
    def names(self) -> dict[int, str]:
        """What a server called each sequence."""
        return {sequence: self._streams[run].request for run, (sequence, _) in self._columns.items()}

    def schedule(self, last_only: Listed[bool]) -> Schedule | None:
        """The passes as steps. A server's are flat: rows of tokens that the grid has not are padding, and tokens that a
        prefix cache gave are copies. All others are dense, or packs, whose sequences are taken to see themselves alone.

        last_only: whether the head of each pass saw only the last token of each sequence. None if it is not known whose
        tokens a cache held, or if a pass is no such step: if it has padding of its own at the left, padding in a pack,
        several packs, or another order.
        """
        steps, done = list[Step](), [0] * len(self._real)
        for (_, tokens), parts, index, last in zip(self._passes, self._parts, self.indices(), last_only, strict=True):
            shown = [(self._columns[run][0], part, at) for run, part in parts if len(at := self._shown(run, part))]
            if not shown:
                continue
            is_served, runs = bool(tokens.ends), tuple(Span(n, int(at[0]), int(at[-1]) + 1) for n, _, at in shown)
            spans = runs if is_served else self._rectangle(tokens, index) or self._pack(tokens, index, runs)
            copies = self._copies(shown, done) if is_served else ()
            is_pack = not is_served and len(spans) > tokens.size[0]
            if not spans or copies is None or (is_pack and last):
                return None
            steps.append(
                Step(
                    spans=spans,
                    shape="flat" if is_served else "packed" if is_pack else "dense",
                    phase=phase_of(spans, {number for number, count in enumerate(done) if count}),
                    scored=tuple(range(len(spans))) if is_served or last else None,
                    padding=tokens.count - sum(span.tokens for span in spans) if is_served else 0,
                    copies=copies,
                )
            )
            for sequence, part, columns in shown:
                done[sequence] = part.start + len(columns)
        if any(tokens.ends for _, tokens in self._passes):
            return Schedule(steps=tuple(steps), positions="tokens", name=OF_THE_PROGRAM)
        every = [span for step in steps for span in step.spans]
        if len({span.sequence for span in every}) == len(every):
            steps = [replace(step, phase=FORWARD) for step in steps]
        return Schedule(steps=tuple(steps), positions=self._positions(every), name=OF_THE_PROGRAM)

    def _rectangle(self, tokens: Tokens, index: Tensor) -> tuple[Span, ...]:
        """The same columns of consecutive sequences; rows may end in padding of the program's, where the grid has some.
        Nothing where a pass is no such.
        """
        rows, every = index.view(tokens.size), torch.arange(self._mask.numel()).view(self._mask.shape)
        number, first = divmod(max(0, int(index[0])), every.shape[1])
        block = every[number : number + tokens.size[0], first : first + tokens.size[1]]
        if block.shape != rows.shape or bool((rows[:, 0] == NOWHERE).any()):
            return ()
        is_padding = (rows == NOWHERE) & ~self._mask.view(-1)[block]
        fits = bool(((rows == block) | is_padding).all())
        return tuple(Span(number + row, first, first + tokens.size[1]) for row in range(len(rows))) if fits else ()

    def _pack(self, tokens: Tokens, index: Tensor, spans: tuple[Span, ...]) -> tuple[Span, ...]:
        """Sequences from their first token on, one behind the other in a single row; nothing where it is no such row.
        Parts that go on read keys of earlier passes, which no pack does.
        """
        is_whole = not bool((index == NOWHERE).any()) and sum(span.tokens for span in spans) == tokens.count
        begins = all(span.first == int(self._real[span.sequence][0]) for span in spans)
        return spans if tokens.size[0] == 1 and is_whole and begins else ()

    def _copies(self, shown: Listed[tuple[int, Sequence, Tensor]], done: Listed[int]) -> tuple[Copy, ...] | None:
        """What a prefix cache gave of sequences that begin in a step; None if it is not known whose tokens it held."""
        copies = list[Copy]()
        for sequence, part, _ in shown:
            if not done[sequence] and part.start:
                source = self._source(sequence, part.start, done)
                if source is None:
                    return None
                begin, there = int(self._real[sequence][0]), int(self._real[source][0])
                copies.append(Copy(sequence, begin, begin + part.start, source, there - begin))
        return tuple(copies)

    def _positions(self, spans: Listed[Span]) -> Positions:
        """Positions from a sequence's first token on, if the grid has padding before it that the program's rows do not
        have; else from the grid's first column on.
        """
        begin = self._mask.int().argmax(dim=1).tolist()
        with_padding = any(span.first < begin[span.sequence] for span in spans)
        return "tokens" if any(begin) and not with_padding else "columns"

    def _shown(self, run: int, part: Sequence) -> Tensor:
        """The columns of those tokens of a stream's part that the grid has."""
        if run not in self._columns:
            return torch.zeros(0, dtype=torch.int64)
        return self._columns[run][1][part.start : part.start + len(part.places)]

    def _source(self, sequence: int, cached: int, done: Listed[int]) -> int | None:
        """The first sequence that has computed the same first tokens by now."""
        prefix, *others = (self._grid[s][self._real[s]][:cached] for s in (sequence, *range(len(done))))
        fitting = (s for s, tokens in enumerate(done) if tokens >= cached and s != sequence)
        return next((s for s in fitting if torch.equal(others[s], prefix)), None)


def _has(tokens: Tensor, first: int, ids: Listed[int] | None) -> bool:
    """Whether a sequence has these tokens from a position on, as far as it goes."""
    shown = tokens[first : first + len(ids or ())].tolist()
    return bool(shown) and ids is not None and shown == list(ids[: len(shown)])
