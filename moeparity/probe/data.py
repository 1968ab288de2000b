"""Data on which the order of a sum shows: sums that cancel to rounding residue."""

from __future__ import annotations

import torch

SPREAD = {torch.float16: 5, torch.bfloat16: 14, torch.float32: 14, torch.float64: 14}
_SHORT = 16


def zero_sum(n: int, rows: int, dtype: torch.dtype, *, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """`rows` sums [rows, n] of pairs (v, -v) whose exponents reach from -14 to 14 (fp16: -5 to 5), and factors [n].

    Both of a pair have one factor, so that the products cancel as well. What is left is rounding residue: random normal
    data would pass wrong 16-bit trees. In a short sum pairs cancel but for their last bits, or it would be 0 in any
    order.
    """
    draw = torch.Generator().manual_seed(seed)
    half = (n + 1) // 2
    spread = SPREAD[dtype]
    values = torch.randn(rows, half, generator=draw)
    values *= 2.0 ** torch.randint(-spread, spread + 1, (rows, half), generator=draw)
    near = 1 + 2.0**-7 if n < _SHORT else 1.0
    pairs = torch.stack([values, -values * near], dim=2).reshape(rows, 2 * half)
    places = torch.randperm(2 * half, generator=draw)
    factors = torch.randn(half, generator=draw).repeat_interleave(2)[places]
    return pairs[:, places][:, :n].contiguous().to(dtype), factors[:n].contiguous().to(dtype)
