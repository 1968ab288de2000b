"""Values whose columns are the keys of attention (scores, masks, transposed keys), compared however each side pads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from moeparity.evidence.diff.token_rows import Tokens
from moeparity.numerics.bits import int_view


@dataclass(frozen=True, slots=True)
class KeyRows:
    """How many rows were compared key by key, and how many differ; the flat places in A of the tokens that differ."""

    rows: int
    differing: int
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class KeyColumns:
    """Two passes whose values have a column for each key: the n-th of a row's sequence is its n-th token.

    One side may have it in a cache, or padded elsewhere. Keys behind those of the shorter side are left out: no token
    of that side sees them. `shared`: the flat places of the tokens that both have, int64 [shared] each.
    """

    a: Tokens
    b: Tokens
    shared: tuple[Tensor, Tensor]

    def are_of(self, widths: tuple[int, int]) -> bool:
        """Whether rows of these widths have a column for each key of their pass, and at most one for a sink behind."""
        more = [width - side.columns for width, side in zip(widths, (self.a, self.b), strict=True)]
        return more[0] == more[1] and more[0] in {0, 1} and self.a.columns > 0 and self.b.columns > 0

    def of_tokens(self, rows: tuple[Tensor, Tensor], tokens: tuple[Tensor, Tensor]) -> KeyRows | None:
        """Rows that are each of one token, such as scores: `rows` [rows, keys] of each side, and the places of their
        tokens, int64 [rows]. None if a token is of no sequence whose keys are known.
        """
        numbers = _sequence_of_places(self.a)[tokens[0]], _sequence_of_places(self.b)[tokens[1]]

        def differs(first: int, second: int) -> tuple[Tensor, Tensor]:
            chosen = ((numbers[0] == first) & (numbers[1] == second)).nonzero().squeeze(-1)
            marks = self._common(first, second, *(x[chosen] for x in rows)).any(-1)
            return marks, tokens[0][chosen][marks]

        return self._compared(_pairs(*numbers), differs)

    def of_keys(self, rows: tuple[Tensor, Tensor]) -> KeyRows | None:
        """Rows that are each of one channel, such as those of transposed keys [sequences, ..., channels, keys], as
        `rows` [rows, keys] of each side. None if they can't be so.
        """
        counts = [len(x) / side.grid[0] for x, side in zip(rows, (self.a, self.b), strict=True)]
        if counts[0] != counts[1] or not counts[0].is_integer():
            return None
        blocks = [x.reshape(side.grid[0], -1, x.shape[-1]) for x, side in zip(rows, (self.a, self.b), strict=True)]

        def differs(first: int, second: int) -> tuple[Tensor, Tensor]:
            ours, theirs = (
                block[side.sequences[n].places[0] // side.grid[-1]]
                for block, side, n in zip(blocks, (self.a, self.b), (first, second), strict=True)
            )
            values = self._common(first, second, ours, theirs)
            sequence = self.a.sequences[first]
            numbers = values.any(0).nonzero().squeeze(-1) - sequence.start
            in_pass = (numbers >= 0) & (numbers < len(sequence.places))
            return values.any(-1), torch.tensor(sequence.places)[numbers[in_pass]]

        first, second = self.shared
        return self._compared(_pairs(_sequence_of_places(self.a)[first], _sequence_of_places(self.b)[second]), differs)

    def _common(self, first: int, second: int, ours: Tensor, theirs: Tensor) -> Tensor:
        """Where rows of two sequences differ in the keys that both have, bool [rows, keys]."""
        keys = self.a.sequences[first].keys, self.b.sequences[second].keys
        sinks = range(self.a.columns, ours.shape[-1]), range(self.b.columns, theirs.shape[-1])
        left, right = ([*each[: min(map(len, keys))], *behind] for each, behind in zip(keys, sinks, strict=True))
        return int_view(ours[:, left].contiguous()) != int_view(theirs[:, right].contiguous())

    def _compared(
        self, pairs: Iterator[tuple[int, int]], differs: Callable[[int, int], tuple[Tensor, Tensor]]
    ) -> KeyRows | None:
        """All pairs of sequences together; `differs` says which rows of a pair differ, and in which tokens."""
        rows, differing, tokens = 0, 0, set[int]()
        for first, second in pairs:
            if min(first, second) < 0 or not self.a.sequences[first].keys or not self.b.sequences[second].keys:
                return None
            marks, places = differs(first, second)
            rows, differing = rows + len(marks), differing + int(marks.sum())
            tokens |= set(places.tolist())
        return KeyRows(rows, differing, tuple(sorted(tokens)))


def equal_keys(ours: Tokens, theirs: Tokens) -> bool:
    """Whether the keys of both passes lie in the same columns; also where neither pass says where."""
    return [each.keys for each in ours.sequences] == [each.keys for each in theirs.sequences]


def _pairs(first: Tensor, second: Tensor) -> Iterator[tuple[int, int]]:
    yield from map(tuple, torch.stack((first, second), -1).unique(dim=0).tolist())  # type: ignore[no-untyped-call]


def _sequence_of_places(tokens: Tokens) -> Tensor:
    """The number of the sequence at each place, int64 [places]; -1 for padding."""
    numbers = torch.full((tokens.count,), -1, dtype=torch.long)
    for number, sequence in enumerate(tokens.sequences):
        numbers[list(sequence.places)] = number
    return numbers
