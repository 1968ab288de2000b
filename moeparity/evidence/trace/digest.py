"""Digests of tensors: 64 bits for each row and for the whole, of the bits, and of where they lie.

Each word of 64 bits is multiplied by an odd number of its column, folded, multiplied by another and folded again: one
to one, so that a single changed word always shows. A row's words are added, modulo 2^64. The value's digest is that of
its rows in their order, with its dtype and shape. It is the same on every device.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch

_COLUMN = -7046029254386353131
"""0x9E3779B97F4A7C15, the golden ratio's, as a signed number."""

_HALF = np.uint64(32)
"""Bits of half a word."""

_FIRST = -4658895280553007687
_SECOND = -7723592293110705685
"""0xBF58476D1CE4E5B9 and 0x94D049BB133111EB, of splitmix64."""

WORDS = 1 << 15
"""So many words are mixed at once, so that they stay in a core's cache."""

_MANY = 1024
"""From so many words on numpy's loops save more than its views of tensors cost."""


def row_digests(tensor: torch.Tensor) -> torch.Tensor:
    """One digest for each row, int64 [product of all axes but the last], on the tensor's device.

    A row is the last axis; a scalar is one row. Of any dtype: its bytes count, -0 is not +0, a NaN is its own bits.
    """
    words = _words(tensor)
    across = words.shape[1]
    return (_narrow(words) if across <= WORDS else _wide(words)).add_(across)


def element_sums(tensor: torch.Tensor, first: int = 0) -> torch.Tensor:
    """One sum for each row, int64 [product of all axes but the last], of the bits of its elements, each mixed with its
    column; the first column is number `first`.

    Sums of parts of a row add up, modulo 2^64, to that of the row, however it was cut; those of `row_digests` do not.
    """
    rows = tensor.detach().reshape(-1, tensor.shape[-1])
    across = rows.shape[1]
    down = max(1, min(len(rows), WORDS // max(1, across)))
    factors, others = (table[first:].repeat(down) for table in _columns(first + across, rows.device))
    sums = torch.zeros(len(rows), dtype=torch.int64, device=rows.device)
    room = sums.new_empty(2, down * across)
    for top in range(0, len(rows) if across else 0, down):
        part = _elements(rows[top : top + down])
        size = part.numel()
        mixed = _mixed_words(part.reshape(-1), factors[:size], others[:size], room)
        torch.sum(mixed.view(-1, across), -1, out=sums[top : top + down])
    return sums


def rows_sum(sums: torch.Tensor, numbers: torch.Tensor) -> int:
    """The sum of rows with these numbers in their tensor, modulo 2^64: sums of some rows, or of parts of rows, add up
    to that of the tensor. `sums` are those of `element_sums`, `numbers` int64 of the same length.
    """
    return int(((_mixed(numbers * _SECOND) | 1) * sums).sum()) & (2**64 - 1)


def _narrow(words: torch.Tensor) -> torch.Tensor:
    """The sums of rows that are mixed many at once, by numbers of their columns laid out for as many: it is flat."""
    rows, across = words.shape
    sums = words.new_zeros(rows)
    if not words.numel():
        return sums
    down = WORDS // across
    first, second = _tiled(across, words.device)
    room = words.new_empty(2, min(rows, down) * across)
    zeros = _zeros(words)
    for top in range(0, rows, down):
        part = words[top : top + down].reshape(-1)
        size = part.numel()
        if not _is_zero(part, zeros):
            mixed = _mixed_words(part, first[:size], second[:size], room)
            torch.sum(mixed.view(-1, across), -1, out=sums[top : top + down])
    return sums


def _wide(words: torch.Tensor) -> torch.Tensor:
    """The sums of rows that are mixed a part at a time."""
    sums = words.new_zeros(words.shape[0])
    first, second = _columns(words.shape[1], words.device)
    room, zeros = words.new_empty(2, WORDS), _zeros(words)
    for row, number in zip(words, range(len(sums)), strict=True):
        for start in range(0, len(row), WORDS):
            columns = slice(start, start + WORDS)
            if not _is_zero(row[columns], zeros):
                sums[number] += _mixed_words(row[columns], first[columns], second[columns], room).sum()
    return sums


def _zeros(words: torch.Tensor) -> torch.Tensor | None:
    """Zeros to hold parts to: none for few words, nor on an accelerator, where a comparison would wait."""
    return words.new_zeros(WORDS) if words.is_cpu and words.numel() > WORDS else None


def _is_zero(part: torch.Tensor, zeros: torch.Tensor | None) -> bool:
    """Whether a part is all zeros, which are mixed to zeros: the gradient of one expert of many, as wide as all, has
    little else. A comparison ends at the first word that is none.
    """
    return zeros is not None and torch.equal(part, zeros[: part.numel()])


def _mixed_words(words: torch.Tensor, first: torch.Tensor, second: torch.Tensor, room: torch.Tensor) -> torch.Tensor:
    """Each of words [N] to another, one to one, by two numbers for each; in `room` [2, N or more]."""
    mixed = room[0, : words.numel()]
    if words.is_cpu and words.numel() >= _MANY:
        _mix_by_numpy(words, first, second, mixed, room[1, : words.numel()])
        return mixed
    torch.mul(words, first, out=mixed)
    halves = mixed.view(torch.int32)
    low, high = halves[..., ::2], halves[..., 1::2]
    low ^= high
    mixed *= second
    low ^= high
    return mixed


def _mix_by_numpy(
    words: torch.Tensor, first: torch.Tensor, second: torch.Tensor, mixed: torch.Tensor, high: torch.Tensor
) -> None:
    """The same by numpy, whose loops over 64-bit words take about half the time of torch's."""
    result, upper = mixed.numpy(), high.numpy().view(np.uint64)
    np.multiply(words.numpy(), first.numpy(), out=result)
    unsigned = result.view(np.uint64)
    np.right_shift(unsigned, _HALF, out=upper)
    unsigned ^= upper
    np.multiply(result, second.numpy(), out=result)
    np.right_shift(unsigned, _HALF, out=upper)
    unsigned ^= upper


_tables: dict[torch.device, tuple[torch.Tensor, torch.Tensor]] = {}


def _columns(across: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Two odd numbers for each column, int64 [across]."""
    tables = _tables.get(device)
    if tables is None or tables[0].numel() < across:
        places = torch.arange(1, 2 * max(across, 1024) + 1, device=device)
        tables = _mixed(places * _COLUMN) | 1, _mixed(places * _FIRST) | 1
        _tables[device] = tables
    return tables[0][:across], tables[1][:across]


@lru_cache(maxsize=64)
def _tiled(across: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """The numbers of the columns for as many rows as are mixed at once."""
    first, second = _columns(across, device)
    return first.repeat(WORDS // across), second.repeat(WORDS // across)


def value_digest(rows: torch.Tensor, shape: Sequence[int], dtype: str) -> str:
    """The digest of a whole value of its rows' digests: 16 hexadecimal digits."""
    return value_digests([rows], [shape], [dtype])[0]


def value_digests(rows: Sequence[torch.Tensor], shapes: Sequence[Sequence[int]], dtypes: Sequence[str]) -> list[str]:
    """The digests of many values at once: of each its rows' digests, its shape and its dtype."""
    if not rows:
        return []
    together = torch.cat([part.cpu() for part in rows])
    counts = torch.tensor([len(part) for part in rows])
    ends = counts.cumsum(0)
    places = torch.arange(1, len(together) + 1) - (ends - counts).repeat_interleave(counts)
    sums = torch.cat((torch.zeros(1, dtype=torch.int64), _mixed(together ^ places * _COLUMN).cumsum(0)))
    totals = (sums[ends] - sums[ends - counts]).tolist()
    return [_head(*value) for value in zip(dtypes, shapes, totals, strict=True)]


def _head(dtype: str, shape: Sequence[int], total: int) -> str:
    text = f"{dtype} {tuple(shape)} {total & (2**64 - 1):016x}"
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _words(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's rows as words, int64 [rows, words of a row]; rows are filled up with zero bytes."""
    rows = math.prod(tensor.shape[:-1])
    if not tensor.numel():
        return torch.zeros(rows, 0, dtype=torch.int64, device=tensor.device)
    # Flat first: a last axis of one element may have any stride, also where a tensor counts as contiguous.
    octets = tensor.detach().reshape(-1).contiguous().view(torch.uint8).reshape(rows, -1)
    short = -octets.shape[-1] % 8
    if short:
        octets = torch.nn.functional.pad(octets, (0, short))
    elif octets.data_ptr() % 8:
        octets = octets.clone()
    return octets.view(torch.int64)


def _elements(rows: torch.Tensor) -> torch.Tensor:
    """The bits of each element as a number, int64, of the shape of `rows`."""
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return rows.contiguous().view(kinds[rows.element_size()]).to(torch.int64)


def _mixed(words: torch.Tensor) -> torch.Tensor:
    """Each word to another, one to one; all arithmetic wraps around."""
    words = (words ^ ((words >> 30) & 0x3FFFFFFFF)) * _FIRST
    words = (words ^ ((words >> 27) & 0x1FFFFFFFFF)) * _SECOND
    return words ^ ((words >> 31) & 0x1FFFFFFFF)
