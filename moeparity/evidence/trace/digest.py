"""Digests of tensors: 64 bits for each row and for the whole, of the bits, and of where they lie.

Each word of 64 bits is mixed with its column (a finaliser of murmur3's kind, one to one, so that a single changed word
always shows) and the mixed words of a row are added, modulo 2^64. The value's digest is that of its rows in their
order, with its dtype and shape. It is the same on every device.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import torch

_COLUMN = -7046029254386353131
"""0x9E3779B97F4A7C15, the golden ratio's, as a signed number."""

_FIRST = -4658895280553007687
_SECOND = -7723592293110705685
"""0xBF58476D1CE4E5B9 and 0x94D049BB133111EB, of splitmix64."""

WORDS = 1 << 16
"""So many words are mixed at once, so that they stay in a core's cache."""


def row_digests(tensor: torch.Tensor) -> torch.Tensor:
    """One digest for each row, int64 [product of all axes but the last], on the tensor's device.

    A row is the last axis; a scalar is one row. Of any dtype: its bytes count, -0 is not +0, a NaN is its own bits.
    """
    words = _words(tensor)
    columns = torch.arange(1, words.shape[1] + 1, device=words.device) * _COLUMN
    sums = words.new_zeros(words.shape[0])
    across = max(1, min(words.shape[1], WORDS))
    down = max(1, WORDS // across)
    for top in range(0, words.shape[0], down):
        part = words[top : top + down]
        for left in range(0, words.shape[1], across):
            sums[top : top + down] += _mixed(part[:, left : left + across] ^ columns[left : left + across]).sum(-1)
    return _mixed(sums + words.shape[1])


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
    width = tensor.shape[-1] if tensor.dim() else 1
    rows = math.prod(tensor.shape[:-1])
    if not tensor.numel():
        return torch.zeros(rows, 0, dtype=torch.int64, device=tensor.device)
    octets = tensor.detach().reshape(rows, width).contiguous().view(torch.uint8)
    short = -octets.shape[-1] % 8
    if short:
        octets = torch.nn.functional.pad(octets, (0, short))
    elif octets.data_ptr() % 8:
        octets = octets.clone()
    return octets.view(torch.int64)


def _mixed(words: torch.Tensor) -> torch.Tensor:
    """Each word to another, one to one; all arithmetic wraps around."""
    words = (words ^ ((words >> 30) & 0x3FFFFFFFF)) * _FIRST
    words = (words ^ ((words >> 27) & 0x1FFFFFFFFF)) * _SECOND
    return words ^ ((words >> 31) & 0x1FFFFFFFF)
