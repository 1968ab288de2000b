"""Values whose columns are the keys of attention (scores, masks, transposed keys), compared however each side pads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from moeparity.evidence.diff.token_rows import Tokens
from moeparity.numerics.bits import int_view

Rows = tuple[Tensor, Tensor, Tensor, Tensor]
"""The rows of either side that are of one token, and its flat places in A and in B, int64 [rows] each."""


@dataclass(frozen=True, slots=True)
class KeyRows:
    """How many rows were compared key by key, and how many differ; the flat places in A of the tokens that differ."""

    rows: int
    differing: int
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """Of a value [n, C] as rows: some of them, int64 [m], and some columns, int64 [c]; None: all columns."""

    rows: Tensor
    columns: Tensor | None = None

    def of(self, value: Tensor) -> Tensor:
        """[n, C] -> [m, c]."""
        return self.columns_of(value[self.rows])

    def columns_of(self, value: Tensor) -> Tensor:
        """[m, C] -> [m, c]."""
        return value if self.columns is None else value[:, self.columns]


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

    def axes(self, shapes: tuple[Sequence[int], Sequence[int]]) -> list[int]:
        """The axes that may be those of keys: the last, or as in a cache the one before it."""
        widths = {axis: tuple(shape[axis] if len(shape) >= -axis else 0 for shape in shapes) for axis in (-1, -2)}
        return [axis for axis, (ours, theirs) in widths.items() if self.are_of((ours, theirs))]

    def read(self, values: tuple[Tensor, Tensor], places: Rows | None) -> KeyRows | None:
        """Two values that have keys along some axis, read in the way in which fewest rows differ; None where nothing
        can be said of them.
        """
        axes, readings = self.axes((values[0].shape, values[1].shape)), []
        for axis in axes:
            x, y = (value.movedim(axis, -1) for value in values)
            readings.append(self.of_keys((x.reshape(-1, x.shape[-1]), y.reshape(-1, y.shape[-1]))))
        if axes[0] == -1 and places is not None:
            readings.append(self.of_tokens(*_rows_of(values, places)))
        best = min((reading for reading in readings if reading), key=lambda reading: reading.differing, default=None)
        # Rows of no one token may have as many columns as there are keys by chance: then only equal bits say something.
        return None if best is None or (len(readings) == len(axes) and best.differing) else best

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

    def differing(self, values: tuple[Tensor, Tensor], places: Rows) -> tuple[Part, Part] | None:
        """Of the rows of tokens those that differ of the two sequences of which most do, in the columns of their keys;
        None where no row of a sequence with known keys does.
        """
        if -1 not in self.axes((values[0].shape, values[1].shape)):
            return None
        rows, tokens = _rows_of(values, places)
        numbers = _sequence_of_places(self.a)[tokens[0]], _sequence_of_places(self.b)[tokens[1]]
        parts: list[tuple[Part, Part]] = []
        for first, second in _pairs(*numbers):
            columns = self._columns(first, second, (rows[0].shape[-1], rows[1].shape[-1]))
            if columns is not None:
                chosen = ((numbers[0] == first) & (numbers[1] == second)).nonzero().squeeze(-1)
                marks = _unequal(*(x[chosen][:, at] for x, at in zip(rows, columns, strict=True))).any(-1)
                of_both = (Part(at[chosen[marks]], of) for at, of in zip(places[:2], columns, strict=True))
                parts.append((next(of_both), next(of_both)))
        return max((part for part in parts if len(part[0].rows)), key=lambda part: len(part[0].rows), default=None)

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
        columns = self._columns(first, second, (ours.shape[-1], theirs.shape[-1]))
        assert columns is not None, "sequences without known keys are not compared"
        return _unequal(ours[:, columns[0]], theirs[:, columns[1]])

    def _columns(self, first: int, second: int, widths: tuple[int, int]) -> tuple[Tensor, Tensor] | None:
        """The columns of the keys that two sequences share, and of a sink behind, int64 [keys] each; None where the
        keys of one are not known, and for padding (-1).
        """
        if min(first, second) < 0:
            return None
        keys = self.a.sequences[first].keys, self.b.sequences[second].keys
        if not keys[0] or not keys[1]:
            return None
        sinks = range(self.a.columns, widths[0]), range(self.b.columns, widths[1])
        left, right = ([*each[: min(map(len, keys))], *behind] for each, behind in zip(keys, sinks, strict=True))
        return torch.tensor(left), torch.tensor(right)

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


def _rows_of(values: tuple[Tensor, Tensor], places: Rows) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Of both values the rows of tokens that they share, [rows, keys], and the places of these tokens."""
    left, right, *tokens = places
    ours, theirs = (value.reshape(-1, value.shape[-1]) for value in values)
    return (ours[left], theirs[right]), (tokens[0], tokens[1])


def _unequal(ours: Tensor, theirs: Tensor) -> Tensor:
    """Where bits differ, bool."""
    return int_view(ours.contiguous()) != int_view(theirs.contiguous())


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
