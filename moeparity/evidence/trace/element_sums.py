"""Sums of a tensor's elements that add up, however it was cut: what weights in shards are told by."""

from __future__ import annotations

import numpy as np
import torch

from moeparity.evidence.trace.digest import COLUMN, FIRST, SECOND, mixed

_HALF = np.uint64(32)
"""Bits of half a word."""

_AT_ONCE = 1 << 15
"""So many words are mixed at once, so that they stay in a core's cache."""

_MANY = 1024
"""From so many words on numpy's loops save more than its views of tensors cost."""


def element_sums(tensor: torch.Tensor, first: int = 0) -> torch.Tensor:
    """One sum for each row, int64 [product of all axes but the last], of the bits of its elements, each mixed with its
    column; the first column is number `first`.

    Sums of parts of a row add up, modulo 2^64, to that of the row, however it was cut; those of `row_digests` do not.
    """
    rows = tensor.detach().reshape(-1, tensor.shape[-1])
    across = rows.shape[1]
    down = max(1, min(len(rows), _AT_ONCE // max(1, across)))
    factors, others = (table[first:].repeat(down) for table in _columns(first + across, rows.device))
    sums = torch.zeros(len(rows), dtype=torch.int64, device=rows.device)
    room = sums.new_empty(2, down * across)
    for top in range(0, len(rows) if across else 0, down):
        part = _elements(rows[top : top + down])
        size = part.numel()
        words = _mixed_words(part.reshape(-1), factors[:size], others[:size], room)
        torch.sum(words.view(-1, across), -1, out=sums[top : top + down])
    return sums


def rows_sum(sums: torch.Tensor, numbers: torch.Tensor) -> int:
    """The sum of rows with these numbers in their tensor, modulo 2^64: sums of some rows, or of parts of rows, add up
    to that of the tensor. `sums` are those of `element_sums`, `numbers` int64 of the same length.
    """
    return int(((mixed(numbers * SECOND) | 1) * sums).sum()) & (2**64 - 1)


def _mixed_words(words: torch.Tensor, first: torch.Tensor, second: torch.Tensor, room: torch.Tensor) -> torch.Tensor:
    """Each of words [N] to another, one to one, by two numbers for each; in `room` [2, N or more]."""
    result = room[0, : words.numel()]
    if words.is_cpu and words.numel() >= _MANY:
        _mix_by_numpy(words, first, second, result, room[1, : words.numel()])
        return result
    torch.mul(words, first, out=result)
    halves = result.view(torch.int32)
    low, high = halves[..., ::2], halves[..., 1::2]
    low ^= high
    result *= second
    low ^= high
    return result


def _mix_by_numpy(
    words: torch.Tensor, first: torch.Tensor, second: torch.Tensor, out: torch.Tensor, high: torch.Tensor
) -> None:
    """The same by numpy, whose loops over 64-bit words take about half the time of torch's."""
    result, upper = out.numpy(), high.numpy().view(np.uint64)
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
        tables = mixed(places * COLUMN) | 1, mixed(places * FIRST) | 1
        _tables[device] = tables
    return tables[0][:across], tables[1][:across]


def _elements(rows: torch.Tensor) -> torch.Tensor:
    """The bits of each element as a number, int64, of the shape of `rows`."""
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return rows.contiguous().view(kinds[rows.element_size()]).to(torch.int64)
