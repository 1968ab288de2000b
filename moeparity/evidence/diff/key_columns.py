"""Values whose columns are the keys of attention (scores, masks, transposed keys), compared however each side pads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from moeparity.evidence.alignment.tokens import Tokens
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
            readings.append(self.of_tokens(values, places))
        best = min((reading for reading in readings if reading), key=lambda reading: reading.differing, default=None)
        # Rows of no one token may have as many columns as there are keys by chance: then only equal bits say something.
        return None if best is None or (len(readings) == len(axes) and best.differing) else best

    def of_tokens(self, values: tuple[Tensor, Tensor], places: Rows) -> KeyRows | None:
        """Values whose rows are each of one token, such as scores. None if a token is of no sequence whose keys are
        known.
        """
        return _together(
            None if columns is None else (marks, places[2][chosen][marks])
            for chosen, columns, marks in self._by_sequences(values, places)
        )

    def differing(self, values: tuple[Tensor, Tensor], places: Rows) -> tuple[Part, Part] | None:
        """Of the rows of tokens those that differ of the two sequences of which most do, in the columns of their keys;
        None where no row of a sequence with known keys does.
        """
        if -1 not in self.axes((values[0].shape, values[1].shape)):
            return None
        parts = [
            (Part(places[0][chosen[marks]], columns[0]), Part(places[1][chosen[marks]], columns[1]))
            for chosen, columns, marks in self._by_sequences(values, places)
            if columns is not None
        ]
        return max((part for part in parts if len(part[0].rows)), key=lambda part: len(part[0].rows), default=None)

    def _by_sequences(
        self, values: tuple[Tensor, Tensor], places: Rows
    ) -> Iterator[tuple[Tensor, tuple[Tensor, Tensor] | None, Tensor]]:
        """Of each two sequences: which of the rows of tokens are theirs, the columns of their keys (None where these
        are not known), and which of the rows differ there.
        """
        numbers = self.a.numbers()[places[2]], self.b.numbers()[places[3]]
        rows = [value.reshape(-1, value.shape[-1])[at] for value, at in zip(values, places[:2], strict=True)]
        for first, second in _pairs(*numbers):
            chosen = ((numbers[0] == first) & (numbers[1] == second)).nonzero().squeeze(-1)
            columns = self._columns(first, second, (rows[0].shape[-1], rows[1].shape[-1]))
            ours, theirs = (x[chosen] for x in rows)
            marks = chosen.bool() if columns is None else _unequal(ours[:, columns[0]], theirs[:, columns[1]]).any(-1)
            yield chosen, columns, marks

    def of_keys(self, rows: tuple[Tensor, Tensor]) -> KeyRows | None:
        """Rows that are each of one channel, such as those of transposed keys [sequences, ..., channels, keys], as
        `rows` [rows, keys] of each side. None if they can't be so.
        """
        counts = [len(x) / side.grid[0] for x, side in zip(rows, (self.a, self.b), strict=True)]
        if counts[0] != counts[1] or not counts[0].is_integer():
            return None
        blocks = [x.reshape(side.grid[0], -1, x.shape[-1]) for x, side in zip(rows, (self.a, self.b), strict=True)]
        return _together(self._channels(blocks))

    def _channels(self, blocks: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor] | None]:
        """Of each two sequences, which channels differ, and the places in A of the tokens in which they do."""
        for first, second in _pairs(self.a.numbers()[self.shared[0]], self.b.numbers()[self.shared[1]]):
            columns = self._columns(first, second, (blocks[0].shape[-1], blocks[1].shape[-1]))
            if columns is None:
                yield None
                continue
            ours, theirs = (
                block[side.rows[n]][:, at]
                for block, side, n, at in zip(blocks, (self.a, self.b), (first, second), columns, strict=True)
            )
            values, sequence = _unequal(ours, theirs), self.a.sequences[first]
            numbers = values.any(0).nonzero().squeeze(-1) - sequence.start
            in_pass = (numbers >= 0) & (numbers < len(sequence.places))
            yield values.any(-1), torch.tensor(sequence.places)[numbers[in_pass]]

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


def _together(pairs: Iterable[tuple[Tensor, Tensor] | None]) -> KeyRows | None:
    """All pairs of sequences together: which rows of each differ, and in which tokens; None where one is not known."""
    rows, differing, tokens = 0, 0, set[int]()
    for pair in pairs:
        if pair is None:
            return None
        rows, differing = rows + len(pair[0]), differing + int(pair[0].sum())
        tokens |= set(pair[1].tolist())
    return KeyRows(rows, differing, tuple(sorted(tokens)))


def _unequal(ours: Tensor, theirs: Tensor) -> Tensor:
    """Where bits differ, bool."""
    return int_view(ours.contiguous()) != int_view(theirs.contiguous())


def equal_keys(ours: Tokens, theirs: Tokens) -> bool:
    """Whether the keys of both passes lie in the same columns; also where neither pass says where."""
    return [each.keys for each in ours.sequences] == [each.keys for each in theirs.sequences]


def _pairs(first: Tensor, second: Tensor) -> Iterator[tuple[int, int]]:
    yield from map(tuple, torch.stack((first, second), -1).unique(dim=0).tolist())  # type: ignore[no-untyped-call]
