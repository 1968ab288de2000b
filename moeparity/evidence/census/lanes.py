"""Sums of a tensor's elements along its axes that do not depend on their order: by these a copy is told, however its
elements were moved.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from moeparity.evidence.trace.digest import FIRST, SECOND

_SHORTEST = 4
"""Elements of a lane, the fewest by which it is told from another."""
_AT_ONCE = 1 << 15
_AT_ONCE_LATER = 1 << 24
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_FIRST, _SECOND, _HALF = np.uint64(FIRST & (1 << 64) - 1), np.uint64(SECOND & (1 << 64) - 1), np.uint64(32)
TOTAL = -1
"""The place of the sum of all elements among the lanes."""


@dataclass(frozen=True, slots=True, eq=False)
class Lanes:
    """The sums of a tensor: by axis, those of all lanes along it, int64 [number of lanes], and under `TOTAL` that of
    all elements [1].

    Each element's bits are mixed to another number, zero to zero, and added modulo 2^64. So padding with zeros changes
    no sum, and two lanes of other elements have equal sums with a chance of 2^-64.
    """

    sums: Mapping[int, torch.Tensor]

    @property
    def total(self) -> torch.Tensor:
        """The sum of all elements, int64 [1]."""
        return self.sums[TOTAL]


def lanes(tensor: torch.Tensor, *, outer: bool = False) -> Lanes:
    """The sums of a strided tensor of any dtype along its last two axes, of three long axes with `outer` along the
    first too. Nothing waits for an accelerator but one transfer at the end.
    """
    values = tensor.detach()
    if values.is_complex():
        values = torch.view_as_real(values)
    shape = [size for size in values.shape if size != 1]
    if values.numel() == 0:
        return Lanes({TOTAL: torch.zeros(1, dtype=torch.int64)})
    if len(shape) < 2:
        flat = values.reshape(-1)
        return _fetched(
            {TOTAL: torch.stack([_mixed(piece).sum() for piece in torch.split(flat, _piece(flat))]).sum()[None]}
        )
    blocks = values.reshape(-1, shape[-2], shape[-1])
    rows, columns = _of_blocks(blocks)
    sums = {TOTAL: rows.sum()[None]}
    if shape[-1] >= _SHORTEST:
        sums[2] = rows
    if shape[-2] >= _SHORTEST:
        sums[1] = columns
    if outer and len(shape) > 2 and blocks.shape[0] >= _SHORTEST:
        flat = blocks.flatten(1)
        pieces = torch.split(flat, _piece(values) // len(flat) + 1, 1)
        sums[0] = torch.cat([_mixed(piece).sum(0) for piece in pieces])
    return _fetched(sums)


def _of_blocks(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The sums of the rows [B n] and of the columns [B m] of blocks [B, n, m], by pieces."""
    height, width = blocks.shape[1:]
    rows, columns = [], []
    if height * width <= _piece(blocks):
        for some in torch.split(blocks, max(1, _piece(blocks) // (height * width))):
            words = _mixed(some)
            rows.append(words.sum(-1).reshape(-1))
            columns.append(words.sum(-2).reshape(-1))
        return torch.cat(rows), torch.cat(columns)
    for block in blocks:
        below = torch.zeros(width, dtype=torch.int64, device=blocks.device)
        for piece in torch.split(block, max(1, _piece(blocks) // width)):
            words = _mixed(piece)
            rows.append(words.sum(-1))
            below += words.sum(-2)
        columns.append(below)
    return torch.cat(rows), torch.cat(columns)


def _piece(tensor: torch.Tensor) -> int:
    """So many elements are mixed at once, so that they stay in a core's cache; on an accelerator many more."""
    return _AT_ONCE if tensor.is_cpu else _AT_ONCE_LATER


def _mixed(values: torch.Tensor) -> torch.Tensor:
    """The bits of each element as another number, int64; zero as zero."""
    size = values.element_size()
    return _mixed_by_numpy(values, size) if values.is_cpu else _mixed_by_torch(values, size)


def _mixed_by_torch(values: torch.Tensor, size: int) -> torch.Tensor:
    words = values.contiguous().view(_WORDS[size]).to(torch.int64)
    if size < 8:
        words &= (1 << 8 * size) - 1
    words *= FIRST
    words ^= (words >> 32) & 0xFFFFFFFF
    words *= SECOND
    return words ^ ((words >> 32) & 0xFFFFFFFF)


def _mixed_by_numpy(values: torch.Tensor, size: int) -> torch.Tensor:
    """The same by numpy, which takes a third of the time; of a copy, since it marks the storage that it is shown."""
    words = values.clone(memory_format=torch.contiguous_format).view(_WORDS[size]).numpy().view(f"u{size}")
    mixed = np.multiply(words, _FIRST, dtype=np.uint64)
    mixed ^= mixed >> _HALF
    mixed *= _SECOND
    mixed ^= mixed >> _HALF
    return torch.from_numpy(mixed.view(np.int64))


def _fetched(sums: Mapping[int, torch.Tensor]) -> Lanes:
    """The sums in main memory, by one transfer."""
    parts = torch.split(torch.cat(list(sums.values())).cpu(), [len(part) for part in sums.values()])
    return Lanes(dict(zip(sums, parts, strict=True)))


def plain_sums(tensor: torch.Tensor) -> dict[int, torch.Tensor]:
    """The same lanes by sums of the bits as they are: far quicker, and no proof. Lanes of other sums have other
    elements.
    """
    values = torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()
    shape = [size for size in values.shape if size != 1]
    words = values.contiguous().view(_WORDS[values.element_size()])
    if values.numel() == 0 or len(shape) < 2:
        return {TOTAL: words.sum(dtype=torch.int64)[None].cpu()}
    words = words.view(-1, shape[-2], shape[-1])
    sums = {2: words.sum(-1, dtype=torch.int64).reshape(-1), 1: words.sum(-2, dtype=torch.int64).reshape(-1)}
    sums[TOTAL] = sums[2].sum()[None]
    return {axis: lane.cpu() for axis, lane in sums.items() if axis == TOTAL or shape[axis - 3] >= _SHORTEST}


def is_telling(tensor: torch.Tensor) -> bool:
    """Whether equal elements are no accident: not where all are one number, unless it is one with many digits.

    One number is telling where the last 8 bits of its fp32 or fp64 are not all zero, as those of 1, 0.5 or 448 are.
    """
    if tensor.numel() == 0:
        return False
    flat = tensor.detach().reshape(-1)
    bits = flat.contiguous().view(_WORDS[flat.element_size()]) if not flat.is_complex() else torch.view_as_real(flat)
    if bool((bits[:_AT_ONCE] != bits[0]).any()) or bool((bits != bits[0]).any()):
        return math.prod(tensor.shape) * flat.element_size() >= 8
    return flat.is_floating_point() and flat.element_size() >= 4 and bool(bits[0] & 0xFF)
