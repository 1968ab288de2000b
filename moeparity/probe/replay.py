"""Sums that a callable made, made again in a stated order, bit for bit: on data that cancels to rounding residue."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from moeparity.numerics.bits import int_view
from moeparity.numerics.dtypes import torch_dtype
from moeparity.numerics.orders import Order
from moeparity.numerics.rounding import rounded, working
from moeparity.numerics.summation import sum_axis

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


AFTER = ("", "/ n", "* (1 / n)")
"""What may be done to a sum before it is rounded: nothing, or what makes it a mean."""


@dataclass(frozen=True, slots=True)
class Way:
    """An order, what its additions round to where its levels say nothing else, and what is done to the sum."""

    order: Order
    accumulate: str
    after: str = ""

    def sums(self, rows: torch.Tensor, factors: torch.Tensor | None, output: torch.dtype) -> torch.Tensor:
        """rows [P, n], times `factors` [n] where there are any, added up -> [P], rounded to `output`."""
        total = sum_axis(
            rows,
            self.order,
            -1,
            accumulate=torch_dtype(self.accumulate),
            times=None if factors is None else factors.expand_as(rows),
            executor="eager",
        )
        if self.after:
            total = total.to(working(total.dtype))
            n = torch.tensor(rows.shape[-1], dtype=total.dtype)
            total = total / n if self.after == AFTER[1] else total * (1 / n)
        return rounded(total, output)


def equal(outputs: torch.Tensor, expected: torch.Tensor) -> int:
    """How many of two lists of outputs have the same bits."""
    if outputs.dtype != expected.dtype:
        return 0
    return int((int_view(outputs) == int_view(expected)).sum())
