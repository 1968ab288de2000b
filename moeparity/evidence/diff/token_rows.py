"""Which token each row of a value is of: padded, packed or cut otherwise, as the recorded ids and positions say."""

from __future__ import annotations

from collections.abc import Sequence as Listed
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from moeparity.evidence.diff.side import Side
from moeparity.evidence.trace.records import Batch, Call

IDS = ("input_ids",)
POSITIONS = ("position_ids", "positions")
MASKS = ("attention_mask", "padding_mask")
STARTS = ("cu_seqlens", "cu_seqlens_q", "cu_seq_lens_q", "query_start_loc")
"""What programs call them."""


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
    def ends(self) -> tuple[int, ...]:
        """In a server, the place of each request's last token, of which its head is given nothing else."""
        return tuple(sequence.places[-1] for sequence in self.sequences if sequence.request)

    @property
    def slots(self) -> tuple[int, ...]:
        """Of each sequence its row, the same in all steps of a batch, also where rows have padding alone; its
        number where there is but one row.
        """
        if len(self.grid) < 2 or self.grid[0] == 1:
            return tuple(range(len(self.sequences)))
        return tuple(sequence.places[0] // self.grid[1] for sequence in self.sequences)

    @property
    def count(self) -> int:
        """Places of the grid."""
        return torch.Size(self.grid).numel()

    def real(self) -> Tensor:
        """Which places hold tokens, bool [places]."""
        real = torch.zeros(self.count, dtype=torch.bool)
        real[[place for sequence in self.sequences for place in sequence.places]] = True
        return real


def tokens_of(side: Side, calls: Listed[Call], top: Call | None) -> Tokens | None:
    """The tokens of one forward pass; None where its ids were not recorded whole."""
    ids = _first_value(side, calls, top, IDS)
    if ids is None:
        ids = _leading_ids(side, calls, top)
    if ids is None or not ids.numel():
        return None
    batch = side.contents.batches.get(calls[0].step)
    if batch is not None and sum(batch.tokens) + batch.padding == ids.numel():
        return _of_requests(batch, ids)
    mask, starts, positions = (_first_value(side, calls, top, names) for names in (MASKS, STARTS, POSITIONS))
    spans = _spans(ids, mask, starts, positions)
    flat = ids.reshape(-1).tolist()
    before = _before(ids, mask, positions)
    columns, keys = _keys(ids, mask, spans)
    sequences = (
        Sequence(tuple(flat[i] for i in span), tuple(span), int(before[span[0]]), keys=keys_here)
        for span, keys_here in zip(spans, keys, strict=True)
    )
    return Tokens(tuple(ids.shape), tuple(sequences), columns)


def _of_requests(batch: Batch, ids: Tensor) -> Tokens:
    """The tokens of a server's step: of each request so many, in its order of rows; the rest is padding."""
    flat, first, sequences = ids.reshape(-1).tolist(), 0, []
    for request, start, count in zip(batch.requests, batch.starts, batch.tokens, strict=True):
        places = tuple(range(first, first + count))
        sequences.append(Sequence(tuple(flat[place] for place in places), places, start, request))
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


def token_of_rows(shape: Listed[int], grid: Listed[int], ends: Listed[int] = ()) -> Tensor | None:
    """The flat place of the token to which each row of a value belongs, int64 [rows]; None if its axes do not tell.

    The number of rows is the product of all axes but the last. Axes that could be those of tokens in two ways tell
    nothing, but for a batch of sequences, which is the first axis of all that have its size, and for a pass of a single
    token, to which all rows belong. In a server a row for each request is that of its last token, whose place is in
    `ends`.
    """
    rows, count = tuple(shape[:-1]), torch.Size(grid).numel()
    if count == 1:
        return torch.zeros(torch.Size(rows).numel(), dtype=torch.long) if 1 in rows else None
    places = torch.arange(count)
    candidates = [axis for axis, size in enumerate(rows) if size == count]
    if ends and not candidates and rows == (len(ends),):
        return torch.tensor(ends)
    if len(grid) == 2 and grid[0] > 1:
        if grid[1] == 1 and rows[:1] == (count,):
            return _spread(rows, (0,), places)
        pairs = [(b, t) for b in range(len(rows)) for t in range(len(rows)) if b != t]
        fitting = [(b, t) for b, t in pairs if (rows[b], rows[t]) == tuple(grid)]
        is_first = len(fitting) > 1 and fitting[0][0] == 0 and len({t for _, t in fitting}) == 1
        if (len(fitting) == 1 or is_first) and not candidates:
            return _spread(rows, fitting[0], places.reshape(tuple(grid)))
    if len(grid) == 2 and grid[0] == 1 and len(candidates) > 1 and rows[0] == 1:
        return None
    return _spread(rows, (candidates[0],), places) if len(candidates) == 1 else None


def _spread(rows: tuple[int, ...], axes: tuple[int, ...], places: Tensor) -> Tensor:
    """The places [tokens by their axes] along all axes of the rows."""
    order = sorted(range(len(axes)), key=lambda i: axes[i])
    shape = [1] * len(rows)
    for axis, size in zip(axes, places.shape, strict=True):
        shape[axis] = size
    return places.permute(order).reshape(shape).expand(rows).reshape(-1)


def _spans(ids: Tensor, mask: Tensor | None, starts: Tensor | None, positions: Tensor | None) -> list[list[int]]:
    """The flat places of each sequence: by the mask, by where sequences start, or by positions that begin anew."""
    width = ids.shape[-1]
    rows = ids.numel() // width
    places = torch.arange(ids.numel()).reshape(rows, width)
    if mask is not None and _is_mask_of(mask, ids):
        # Of tokens behind a cache the mask has the cache's columns, too.
        attended = mask[..., -width:].reshape(rows, width).bool()
        return [row[marks].tolist() for row, marks in zip(places, attended, strict=True) if bool(marks.any())]
    if starts is not None and starts.dim() == 1 and len(starts) > 1 and int(starts[-1]) <= ids.numel():
        edges = starts.tolist()
        return [list(range(low, high)) for low, high in pairwise(edges) if high > low]
    spread = None if positions is None else _spread_over(positions, ids)
    if spread is not None:
        continues = spread.reshape(rows, width).diff(dim=-1) == 1
        return [part for row, runs in zip(places.tolist(), continues.tolist(), strict=True) for part in _cut(row, runs)]
    return [row.tolist() for row in places]


def _keys(ids: Tensor, mask: Tensor | None, spans: list[list[int]]) -> tuple[int, list[tuple[int, ...]]]:
    """How many columns attention scores have, and where the tokens of each span stand among them, as the mask of a
    padded batch says; 0 and nothing without such a mask.
    """
    if mask is None or mask.dim() != 2 or not _is_mask_of(mask, ids):
        return 0, [()] * len(spans)
    width = ids.shape[-1]
    return mask.shape[-1], [tuple(mask[span[0] // width].bool().nonzero().squeeze(-1).tolist()) for span in spans]


def _before(ids: Tensor, mask: Tensor | None, positions: Tensor | None) -> Tensor:
    """How many tokens a sequence that begins at a place has before this pass, int64 [places]."""
    width = ids.shape[-1]
    if mask is not None and _is_mask_of(mask, ids):
        counts = mask.bool().long().cumsum(-1) - 1
        return counts[..., -width:].reshape(-1).clamp(min=0)
    spread = None if positions is None else _spread_over(positions, ids)
    return torch.zeros(ids.numel(), dtype=torch.long) if spread is None else spread.reshape(-1).long()


def _is_mask_of(mask: Tensor, ids: Tensor) -> bool:
    """Whether a mask is of these ids, or of these behind what a cache holds."""
    return mask.dim() == ids.dim() and mask.shape[:-1] == ids.shape[:-1] and mask.shape[-1] >= ids.shape[-1]


def _spread_over(positions: Tensor, ids: Tensor) -> Tensor | None:
    """Positions in the shape of ids: every sequence has those of one row; None where they are of other tokens."""
    if positions.numel() == ids.numel():
        return positions.reshape(ids.shape)
    if positions.dim() == ids.dim() and positions.shape[-1] == ids.shape[-1] and positions.numel() == ids.shape[-1]:
        return positions.expand(ids.shape)
    return None


def _cut(row: list[int], continues: list[bool]) -> list[list[int]]:
    parts = [[row[0]]]
    for place, goes_on in zip(row[1:], continues, strict=True):
        if goes_on:
            parts[-1].append(place)
        else:
            parts.append([place])
    return parts


def _first_value(side: Side, calls: Listed[Call], top: Call | None, names: Listed[str]) -> Tensor | None:
    """The first value that a module was given under one of these names and that was kept whole."""
    modules = [call for call in calls if call.level == "module"]
    for call in ([top] if top else []) + sorted(modules, key=lambda call: call.id):
        for name in names:
            number = call.inputs.get(name)
            tensor = None if number is None else side.tensor(number)
            if tensor is not None and not tensor.is_floating_point():
                return tensor
    return None


def _leading_ids(side: Side, calls: Listed[Call], top: Call | None) -> Tensor | None:
    """Ids that have no name: the first whole numbers that the outermost module is given, or those of an embedding."""
    numbers = list(top.inputs.values())[:1] if top else []
    numbers += [call.inputs["1"] for call in calls if call.name.startswith("aten.embedding") and "1" in call.inputs][:1]
    for number in numbers:
        value = side.value(number)
        tensor = side.tensor(number) if value.dtype in {"int64", "int32"} and len(value.shape) in {1, 2} else None
        if tensor is not None:
            return tensor
    return None
