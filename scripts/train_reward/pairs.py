"""Pairs of windows of Python's standard library: one as it stands, and one with a few bytes replaced."""

from __future__ import annotations

import torch
from torch import Tensor

LENGTHS = range(24, 49)
"""Of a window, in bytes: sequences of a batch differ in length, as answers do."""
SPAN = 3
"""How many bytes of a rejected window are replaced, by printable ones drawn evenly."""
HARD_SPAN = 1
"""The same of the validation, where the model is to be unsure."""
PRINTABLE = range(33, 127)
PAD = 0
"""A byte that no source holds."""
WIDTH = LENGTHS[-1]


def draw(data: Tensor, count: int, generator: torch.Generator, span: int = SPAN) -> tuple[Tensor, Tensor]:
    """Ids int64 [2 * count, WIDTH], chosen and rejected in turn, padded on the right; and their lengths int64 [2 *
    count].

    data: uint8, the bytes of the corpus. A rejected window is the chosen one with `span` bytes
    replaced.
    """
    ids = torch.full((2 * count, WIDTH), PAD)
    lengths = torch.empty(2 * count, dtype=torch.int64)
    for pair in range(count):
        window, mixed = _pair(data, generator, span)
        for row, sequence in ((2 * pair, window), (2 * pair + 1, mixed)):
            ids[row, : len(sequence)] = sequence
            lengths[row] = len(sequence)
    return ids, lengths


def _pair(data: Tensor, generator: torch.Generator, replaced: int) -> tuple[Tensor, Tensor]:
    """A window, and the same with some bytes replaced."""
    while True:
        length = LENGTHS[int(torch.randint(len(LENGTHS), (1,), generator=generator))]
        begin = int(torch.randint(len(data) - length, (1,), generator=generator))
        window = data[begin : begin + length].long()
        start = int(torch.randint(length - replaced, (1,), generator=generator))
        span, mixed = slice(start, start + replaced), window.clone()
        mixed[span] = torch.randint(PRINTABLE[0], PRINTABLE[-1] + 1, (replaced,), generator=generator)
        if not bool((mixed == window).all()):
            return window, mixed
