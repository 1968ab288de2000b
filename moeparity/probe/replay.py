"""Replays a callable's sums in a stated order, bit for bit, on data that cancels to rounding residue."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from moeparity.numerics.bits import int_view
from moeparity.numerics.dtypes import TowardZero, torch_dtype
from moeparity.numerics.orders import Order, OrderError, parse
from moeparity.numerics.rounding import product, rounded, working
from moeparity.numerics.summation import sum_axis

SPREAD = {torch.float16: 5, torch.bfloat16: 14, torch.float32: 14, torch.float64: 14}
_SHORT = 16


def zero_sum(n: int, rows: int, dtype: torch.dtype, *, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """`rows` sums [rows, n] of pairs (v, -v) with exponents from -14 to 14 (fp16: -5 to 5), and factors [n].

    Both numbers of a pair have the same factor, so products cancel as well, and what is left is rounding residue;
    random normal data would not show wrong 16-bit trees. In every other short sum, pairs cancel except for their last
    bits, since most sums would else be 0 in any order.
    """
    draw = torch.Generator().manual_seed(seed)
    half = (n + 1) // 2
    spread = SPREAD[dtype]
    values = torch.randn(rows, half, generator=draw)
    values *= 2.0 ** torch.randint(-spread, spread + 1, (rows, half), generator=draw)
    near = torch.ones(rows, 1)
    if n < _SHORT:
        near[1::2] += torch.finfo(dtype).eps
    pairs = torch.stack([values, -values * near], dim=2).reshape(rows, 2 * half)
    places = torch.randperm(2 * half, generator=draw)
    factors = torch.randn(half, generator=draw).repeat_interleave(2)[places]
    return pairs[:, places][:, :n].contiguous().to(dtype), factors[:n].contiguous().to(dtype)


AFTER = ("", "/ n", "* (1 / n)")
"""What may be done to a sum before it is rounded: nothing, or one of two ways to make a mean of it."""


@dataclass(frozen=True, slots=True)
class Way:
    """A way to add: an order, the rounding of additions unless levels state it, and what is done to the sum.

    product: the dtype to which each product is rounded before it is added; "" if it is added as the order says, rounded
    to fp32 or by an fma.
    cut: whether the sum's last bits are cut off where it is stored; else it is rounded to nearest.
    """

    order: Order
    accumulate: str
    after: str = ""
    product: str = ""
    cut: bool = False

    def sums(self, rows: torch.Tensor, factors: torch.Tensor | None, output: torch.dtype) -> torch.Tensor:
        """The sums of rows [P, n], times `factors` [n] if given -> [P], rounded to `output`."""
        total = self.total(rows, None if factors is None else factors.expand_as(rows))
        if self.after:
            total = total.to(working(total.dtype))
            n = torch.tensor(rows.shape[-1], dtype=total.dtype)
            total = total / n if self.after == AFTER[1] else total * (1 / n)
        return rounded(total, TowardZero(output) if self.cut else output)

    def total(self, x: torch.Tensor, times: torch.Tensor | None) -> torch.Tensor:
        """The sums of x [P, n], times `times` [P, n] if given -> [P]; without `after`."""
        if times is not None and self.product:
            x, times = product(x, times, torch_dtype(self.product)), None
        return sum_axis(x, self.order, -1, accumulate=torch_dtype(self.accumulate), times=times, executor="eager")


def by_product(way: Way, stated: str | None = None) -> Iterator[Way]:
    """`way` with its products rounded as `stated`, else in every way; unchanged if it contracts them."""
    if way.order.fma:
        return iter([way])
    wider = ["fp64"] if way.accumulate == "fp64" else []
    return (replace(way, product=name) for name in (["", "bf16", "fp16", *wider] if stated is None else [stated]))


def contracted(order: Order) -> Order | None:
    """The order with its products contracted into additions; None if its first level has no word for that."""
    first, *further = order.levels
    try:
        return parse(str(Order((replace(first, words=tuple(sorted({*first.words, "fma"}))), *further))))
    except OrderError:
        return None


def uncontracted(order: Order) -> Order | None:
    """The order with its products rounded before they are added; None if it does not contract them."""
    if not order.fma:
        return None
    words = (replace(level, words=tuple(word for word in level.words if word != "fma")) for level in order.levels)
    return Order(tuple(words))


def equal(outputs: torch.Tensor, expected: torch.Tensor) -> int:
    """How many of two lists of outputs have the same bits."""
    if outputs.dtype != expected.dtype:
        return 0
    return int((int_view(outputs) == int_view(expected)).sum())
