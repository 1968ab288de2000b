"""The tokens of a forward pass: padded, packed, flat or behind a cache, as its ids, mask and positions say."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Listed
from dataclasses import dataclass

import torch
from torch import Tensor

from moeparity.evidence.alignment.key_masks import KeyMask
from moeparity.evidence.trace.records import Batch


@dataclass(frozen=True, slots=True)
class Sequence:
    """What a forward pass has of one sequence: its ids (None if only its length is known), and its flat places in the
    grid. `start`: how many of its tokens lie before these, in a cache that earlier passes filled. `request`: in a
    server, the request that it is of. `keys`: where its tokens stand among the columns of attention scores, those in
    the cache first; empty if that is not known.
    """

    ids: tuple[int, ...] | None
    places: tuple[int, ...]
    start: int = 0
    request: str = ""
    keys: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Tokens:
    """All tokens of a forward pass, by the shape of its ids, [B, T] or [N]; places in no sequence are padding.

    `columns`: how many columns attention scores have, one for each key; 0 if that is not known.
    """

    grid: tuple[int, ...]
    sequences: tuple[Sequence, ...]
    columns: int = 0

    @property
    def size(self) -> tuple[int, int]:
        """Rows, and places of each."""
        return self.count // self.grid[-1], self.grid[-1]

    @property
    def before(self) -> int:
        """How many keys of earlier tokens a row reads, with padding where there is some."""
        if self.columns:
            return self.columns - self.grid[-1]
        return max((sequence.start for sequence in self.sequences), default=0)

    @property
    def keys(self) -> int:
        """How many keys the longest row reads, its own among them; in a server the longest request."""
        if self.ends:
            return max(sequence.start + len(sequence.places) for sequence in self.sequences)
        return self.before + self.grid[-1]

    @property
    def queries(self) -> int:
        """How many tokens a row has, with padding; in a server the longest request."""
        return max(len(sequence.places) for sequence in self.sequences) if self.ends else self.grid[-1]

    @property
    def ends(self) -> tuple[int, ...]:
        """In a server, the place of each request's last token, of which its head is given nothing else."""
        return tuple(sequence.places[-1] for sequence in self.sequences if sequence.request)

    @property
    def rows(self) -> tuple[int, ...]:
        """Of each sequence its row."""
        return tuple(sequence.places[0] // self.grid[-1] for sequence in self.sequences)

    @property
    def slots(self) -> tuple[int, ...]:
        """Of each sequence its row, the same in all steps of a batch, also where rows have padding alone; its
        number where there is but one row.
        """
        return tuple(range(len(self.sequences))) if self.size[0] == 1 else self.rows

    @property
    def is_packed(self) -> bool:
        """Whether several sequences stand behind each other in a row."""
        return len(set(self.rows)) < len(self.sequences)

    @property
    def count(self) -> int:
        """Places of the grid."""
        return torch.Size(self.grid).numel()

    def real(self) -> Tensor:
        """Which places hold tokens, bool [places]."""
        return self.numbers() >= 0

    def numbers(self) -> Tensor:
        """The number of the sequence at each place, int64 [places]; -1 for padding."""
        return self._filled(-1, ([number] * len(each.places) for number, each in enumerate(self.sequences)))

    def positions(self) -> Tensor:
        """The position of each token in its sequence, int64 [places]; 0 for padding."""
        return self._filled(0, (range(each.start, each.start + len(each.places)) for each in self.sequences))

    def numbers_in_rows(self) -> Tensor:
        """The number of each token's sequence in its row, int64 [rows, places]; padding goes with what is before it."""
        begins = torch.zeros(self.size, dtype=torch.long)
        rows = self.rows
        for number, (sequence, row) in enumerate(zip(self.sequences, rows, strict=True)):
            begins[row, sequence.places[0] % self.grid[-1]] = int(row in rows[:number])
        return begins.cumsum(1)

    def where(self, place: int) -> tuple[int, int, str]:
        """Where a token stands, as people say it: by row and column; by sequence and position in a single row of
        several; in a server by position and request.
        """
        number = int(self.numbers()[place])
        if self.ends and number >= 0:
            return 0, int(self.positions()[place]), self.sequences[number].request
        if self.size[0] == 1 and self.is_packed:
            number = int(self.numbers_in_rows()[0, place])
            return number, place - (self.sequences[number].places[0] if number else 0), ""
        return *divmod(place, self.grid[-1]), ""

    def _filled(self, padding: int, values: Iterator[Listed[int]]) -> Tensor:
        filled = torch.full((self.count,), padding, dtype=torch.long)
        for sequence, of_sequence in zip(self.sequences, values, strict=True):
            filled[list(sequence.places)] = torch.tensor(of_sequence, dtype=torch.long)
        return filled


def tokens_in(
    ids: Tensor, mask: KeyMask | None = None, positions: Tensor | None = None, starts: Tensor | None = None
) -> Tokens:
    """The tokens of a forward pass of ids [B, T] or [N].

    mask: which keys are no padding. positions: in the shape of `ids`. starts: the flat places at which sequences begin,
    as kernels for packs are given them, int64 [sequences].
    """
    width = ids.shape[-1]
    rows, flat = ids.numel() // width, ids.reshape(-1).tolist()
    real = torch.ones(rows, width, dtype=torch.bool) if mask is None else mask.keys[:, -width:]
    begins = torch.zeros(rows, width, dtype=torch.bool)
    if starts is not None and mask is None:
        begins.view(-1)[starts] = True
    elif positions is not None:
        begins = _begins(positions.reshape(rows, width), real, is_flat=ids.dim() == 1)
    spans = [span for row in range(rows) for span in _cut(row * width, real[row].tolist(), begins[row].tolist())]
    several = len(spans) > len({span[0] // width for span in spans})
    at = [0] * len(flat) if positions is None else positions.reshape(-1).tolist()
    sequences = []
    for span in spans:
        start, keys = at[span[0]], list[int]()
        if mask is not None:
            of_row = mask.keys[span[0] // width]
            start = int(of_row[:-width].sum())
            keys = [place % width for place in span] if several else of_row.nonzero().flatten().tolist()
        sequences.append(Sequence(tuple(flat[i] for i in span), tuple(span), max(0, start), keys=tuple(keys)))
    return Tokens(tuple(ids.shape), tuple(sequences), 0 if mask is None else mask.keys.shape[1])


def _begins(positions: Tensor, real: Tensor, *, is_flat: bool) -> Tensor:
    """Where positions begin anew behind another token of their row, bool [rows, T]: at 0 in a batch of rows, and in
    the flat rows of a server, of which each sequence may go on at any position, wherever they do not count on.
    """
    begins = torch.zeros_like(real)
    anew = (positions == 0) | ((positions != positions.roll(1, 1) + 1) & is_flat)
    begins[:, 1:] = anew[:, 1:] & real[:, 1:] & real[:, :-1]
    return begins


def _cut(first: int, real: Listed[bool], begins: Listed[bool]) -> Iterator[list[int]]:
    """The flat places of each sequence in a row whose first place is `first`."""
    span: list[int] = []
    for column, (is_real, is_begin) in enumerate(zip(real, begins, strict=True)):
        if is_begin and span:
            yield span
            span = []
        if is_real:
            span.append(first + column)
    if span:
        yield span


def of_requests(batch: Batch, ids: Tensor) -> Tokens:
    """The tokens of a server's step: of each request so many, in its order of rows; the rest is padding."""
    flat, first, sequences = ids.reshape(-1).tolist(), 0, []
    for request, start, count in zip(batch.requests, batch.starts, batch.tokens, strict=True):
        places = tuple(range(first, first + count))
        sequences.append(Sequence(tuple(flat[first : first + count]), places, start, request))
        first += count
    return Tokens(tuple(ids.shape), tuple(sequences))


def stated(lengths: Listed[int], padded_to: int | None, *, at_left: bool) -> Tokens:
    """Tokens of which only the layout is known: packed sequences of these lengths, or padded to one length."""
    if padded_to is None:
        starts = [sum(lengths[:i]) for i in range(len(lengths))]
        spans = [range(start, start + length) for start, length in zip(starts, lengths, strict=True)]
        return Tokens((sum(lengths),), tuple(Sequence(None, tuple(span)) for span in spans))
    rows = [range(padded_to - length, padded_to) if at_left else range(length) for length in lengths]
    places = (tuple(row * padded_to + place for place in span) for row, span in enumerate(rows))
    return Tokens((len(lengths), padded_to), tuple(Sequence(None, span) for span in places))
