"""Sums that a callable made, made again in a stated order: on data that cancels to rounding residue, bit for bit."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from moeparity.numerics.bits import int_view
from moeparity.numerics.dtypes import torch_dtype
from moeparity.numerics.orders import Order
from moeparity.numerics.rounding import rounded, working
from moeparity.numerics.summation import sum_axis

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
