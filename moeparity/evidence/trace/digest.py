"""Digests of tensors: 64 bits for each row and for the whole, of the bits, and of where they lie.

A row's bytes are cut into segments. Of each segment 16 sums are taken, of its bytes times keys of 7 bits: whole numbers
that every device has exactly, in whatever order and precision of at least 24 bits it adds. The sums of a row, times
numbers of their places, are added modulo 2^64, twice with other numbers. Two rows that differ, and were not chosen
against the keys, meet with a chance of 2^-111 in the first and of 2^-64 in the second. The value's digest is that of
its rows in their order, with its dtype and shape. It is the same on every device.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from functools import lru_cache

import torch

from moeparity.evidence.trace.memory import words_of

COLUMN = -7046029254386353131
"""0x9E3779B97F4A7C15, the golden ratio's, as a signed number."""

FIRST = -4658895280553007687
SECOND = -7723592293110705685
"""0xBF58476D1CE4E5B9 and 0x94D049BB133111EB, of splitmix64."""

_SEGMENT = 512
_SEGMENTS = 256, 1024
"""Bytes of a segment where a row is none by itself, and the least and the most where that fills rows without a rest."""

_SUMS = 16
"""Sums of a segment."""

_PART = 1 << 12
"""So many words of a row's sums are added; sums of these, in a wider row, are added each times a number of its own."""

_PIECE = 1 << 19
_LATER = 1 << 26
"""Bytes that are looked at at once, so that they stay in a core's cache; and on an accelerator."""

_WIDEST = 16
"""Bytes of the widest dtype."""

_BLOCK = 1 << 24
"""Bytes whose sums are held at once, of several rows."""

Watch = Callable[[torch.Tensor], None]
"""What is shown the elements of a value, flat and a piece at a time; of pieces that are zero a single element."""


def row_digests(tensor: torch.Tensor, watch: Watch | None = None) -> torch.Tensor:
    """One digest for each row, int64 [product of all axes but the last], on the tensor's device.

    A row is the last axis; a scalar is one row. Of any dtype: its bytes count, -0 is not +0, a NaN is its own bits.
    `watch` sees each piece before it is digested, while it is in the cache.
    """
    count = math.prod(tensor.shape[:-1])
    if not tensor.numel():
        return torch.zeros(count, dtype=torch.int64, device=tensor.device)
    # Of a single element any stride is contiguous to torch.
    flat = tensor.detach().reshape(-1).contiguous().as_strided((tensor.numel(),), (1,))
    down = max(1, _BLOCK * count // max(flat.nbytes, 4 * _SUMS * count))
    if count <= down:
        return _digests(flat, count, watch)
    across = flat.numel() // count
    tops = range(0, count, down)
    return torch.cat([_digests(flat[at * across :][: down * across], min(down, count - at), watch) for at in tops])


def _digests(flat: torch.Tensor, count: int, watch: Watch | None) -> torch.Tensor:
    """Digests of so many rows that lie behind each other."""
    octets = flat.view(torch.int8)
    width = octets.numel() // count
    segment = _segment(width)
    short = -width % segment
    if short:
        if watch is not None:
            watch(flat)  # by itself: what its rows are filled up with is none of it
        octets, watch = torch.nn.functional.pad(octets.view(count, -1), (0, short)), None
    words = _sums(octets.view(-1, segment), flat.dtype, watch).view(torch.int64).view(count, -1)
    parts = -(-words.shape[1] // _PART)
    if parts > 1:
        words = torch.nn.functional.pad(words, (0, -words.shape[1] % _PART)).view(-1, _PART)
    low, high = (_dots(words, numbers) for numbers in _places(words.shape[1], words.device))
    if parts > 1:
        low_keys, high_keys = _places(parts, words.device)
        low, high = (low.view(-1, parts) * low_keys).sum(-1), (high.view(-1, parts) * high_keys).sum(-1)
    return low.add_(high.bitwise_right_shift_(32)).add_(width)


def _sums(segments: torch.Tensor, dtype: torch.dtype, watch: Watch | None) -> torch.Tensor:
    """The sums of segments [N, bytes], int32 [N, sums]. Those of zeros are zero, and not taken: the gradient of one
    expert of many, as wide as all, has little else. `watch` is shown elements of that dtype.
    """
    down = max(_WIDEST, (_PIECE if segments.is_cpu else _LATER) // segments.shape[1] // _WIDEST * _WIDEST)
    if segments.shape[0] <= down:
        if watch is not None:
            watch(segments.view(-1).view(dtype))
        return _products(segments)
    sums = torch.zeros(segments.shape[0], _SUMS, dtype=torch.int32, device=segments.device)
    for at in range(0, segments.shape[0], down):
        count = min(down, segments.shape[0] - at)
        piece = segments.narrow(0, at, count)
        is_zero = _is_zero(piece)
        if watch is not None:
            shown = piece.view(-1).view(dtype)
            watch(shown[:1] if is_zero else shown)
        if not is_zero:
            _products(piece, out=sums.narrow(0, at, count))
    return sums


def _products(segments: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """Of each of segments [N, bytes] its sums, int32 [N, sums]."""
    if segments.is_cpu and _multiplies_bytes():
        keys = _keys(segments.shape[1], segments.device)
        sums: torch.Tensor = torch._int_mm(segments, keys, out=out)  # noqa: SLF001  it has no public name
        return sums
    sums = _products_of_floats(segments)
    return sums if out is None else out.copy_(sums)


def _products_of_floats(segments: torch.Tensor) -> torch.Tensor:
    """The same where there is no product of bytes, or none that is quick: of numbers below 2^24, exact in any order."""
    keys = _keys(segments.shape[1], segments.device)
    with torch.autocast(segments.device.type, enabled=False):
        return (segments.float() @ keys.float()).to(torch.int32)


@lru_cache(maxsize=1)
def _multiplies_bytes() -> bool:
    """Whether the processor adds products of bytes; without that torch's may be slower than those of floats."""
    return "AVX512" in torch.backends.cpu.get_cpu_capability()


def _dots(words: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """The sum of each row of words times these numbers, modulo 2^64."""
    # torch has no product of int64 matrices on accelerators.
    return torch.mv(words, numbers) if words.is_cpu else (words * numbers).sum(-1)


@lru_cache(maxsize=4096)
def _segment(width: int) -> int:
    """Bytes of a segment of rows so wide: a whole row, or what divides it, by 64 where that can be, or 512."""
    least, most = _SEGMENTS
    if width <= most:
        return width
    fitting = [size for size in range(least, most + 1) if width % size == 0]
    return max(fitting, key=lambda size: (size % 64 == 0, size), default=_SEGMENT)


@lru_cache(maxsize=1024)
def _keys(segment: int, device: torch.device) -> torch.Tensor:
    """Keys of a segment's bytes, int8 [segment, sums], each -63 to -1 or 1 to 63.

    Products of pairs then fit 16 bits signed, which processors before VNNI add them in.
    """
    places = torch.arange(1, segment * _SUMS + 1, device=device)
    drawn = (mixed(places * COLUMN) & (2**63 - 1)) % 126
    return torch.where(drawn < 63, drawn - 63, drawn - 62).to(torch.int8).view(segment, _SUMS)


@lru_cache(maxsize=1024)
def _places(across: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Two odd numbers for each word of a row's sums, int64 [across]."""
    places = torch.arange(1, across + 1, device=device)
    return mixed(places * FIRST) | 1, mixed(places * SECOND) | 1


def _is_zero(octets: torch.Tensor) -> bool:
    """Whether bytes are all zero; on an accelerator, where that would wait, it isn't asked. Most show it by their
    first.
    """
    if not octets.is_cpu:
        return False
    words = words_of(octets)
    return not words[:8].any() and not words.any()


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
    sums = torch.cat((torch.zeros(1, dtype=torch.int64), mixed(together ^ places * COLUMN).cumsum(0)))
    totals = (sums[ends] - sums[ends - counts]).tolist()
    return [_head(*value) for value in zip(dtypes, shapes, totals, strict=True)]


def _head(dtype: str, shape: Sequence[int], total: int) -> str:
    text = f"{dtype} {tuple(shape)} {total & (2**64 - 1):016x}"
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def mixed(words: torch.Tensor) -> torch.Tensor:
    """Each word to another, one to one; all arithmetic wraps around."""
    words = (words ^ ((words >> 30) & 0x3FFFFFFFF)) * FIRST
    words = (words ^ ((words >> 27) & 0x1FFFFFFFFF)) * SECOND
    return words ^ ((words >> 31) & 0x1FFFFFFFF)
