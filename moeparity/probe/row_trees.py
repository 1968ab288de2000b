"""Finds the tree of one class of rows of an RMSNorm or softmax; for RMSNorm also the operations around the sum."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from moeparity.numerics.bits import int_view
from moeparity.numerics.dtypes import name_of
from moeparity.numerics.orders import Order
from moeparity.numerics.rounding import product, rounded, wide
from moeparity.probe.compact import compact
from moeparity.probe.nonnegative import Exponentials, Squares
from moeparity.probe.replay import AFTER, Way, by_product, contracted, zero_sum
from moeparity.probe.triplets import reveal_triplets

REPLAYED, FEWER, LARGE = 256, 64, 2048
EPS = 2.0**-20

ROOTS = ("rsqrt", "1 / sqrt")
ASSOCIATIONS = ("x_rstd_first", "weight_rstd_first", "weight_x_first")


@dataclass(frozen=True, slots=True)
class Form:
    """How an RMSNorm continues from the sum of squares, in the words of op rms_norm; `after` makes the mean."""

    after: str
    root: str
    normalized: str
    association: str

    @property
    def sites(self) -> tuple[tuple[str, str], ...]:
        """Attributes of op rms_norm."""
        scale = (("mean", "divide" if self.after == AFTER[1] else "reciprocal"),)
        root = (("rsqrt", "native" if self.root == ROOTS[0] else "sqrt_div"),)
        if self.normalized == "model":
            return (*scale, *root, ("normalized", "model"))
        return (*scale, *root, ("normalized", "fp32"), ("association", self.association))

    def __str__(self) -> str:
        return f"{self.after} + eps, {self.root}"

    def rows(self, x: torch.Tensor, weight: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        """The rows [P, n] for x [P, n], weight [n] and sums of squares [P, 1], with an eps of 2^-20."""
        n = torch.tensor(float(x.shape[-1]))
        mean = total / n if self.after == AFTER[1] else total * (1 / n)
        rstd = torch.rsqrt(mean + EPS) if self.root == ROOTS[0] else 1 / torch.sqrt(mean + EPS)
        if self.normalized == "model":
            return product(rounded(product(x, rstd, torch.float32), x.dtype), weight, x.dtype)
        x, weight = wide(x), wide(weight)
        if self.association == ASSOCIATIONS[0]:
            out = (x * rstd) * weight
        elif self.association == ASSOCIATIONS[1]:
            out = x * (rstd * weight)
        else:
            out = (x * weight) * rstd
        return out


@dataclass(frozen=True, slots=True)
class Revealed:
    """The order and the rounding of its additions; `form`, and how many of the replayed rows are reproduced in it
    (`equal`).

    square: the dtype to which squares are rounded before they are added, "" if they are added as the order says.
    """

    order: Order
    accumulate: str
    output: str
    form: Form | None = None
    square: str = ""
    equal: int = 0
    replayed: int = 0

    @property
    def sites(self) -> tuple[tuple[str, str], ...]:
        """Attributes of op rms_norm besides its order; () unless all rows are reproduced."""
        if self.form is None or self.equal < self.replayed:
            return ()
        return (("square", self.square or "fp32"), *self.form.sites)


def rows_at(
    rows: Squares | Exponentials, at: Sequence[int], replay: Order | None = None, square: str | None = None
) -> Revealed:
    """Probe rows `at`, and replay whole rows in `replay`, by default in the order found, with squares contracted if
    that gives the bits. square: as `Way.product`; by default whatever gives the bits. Raises NoTree as `start` does.
    """
    rows.start(at)
    shape = reveal_triplets(rows.ask, rows.setup.n)
    order = compact(shape)[0]
    accumulate = {24: "fp32", 8: "bf16", 11: "fp16"}[rows.bits]
    if isinstance(rows, Exponentials):
        return Revealed(order, accumulate, "fp32")
    if replay is not None:
        return replace(_replay(rows, [replay], accumulate, square), order=order)
    return _replay(rows, [order, *filter(None, [contracted(order)])], accumulate, square)


def _forms() -> Iterator[Form]:
    for after in AFTER[1:]:
        for root in ROOTS:
            yield Form(after, root, "model", "")
            for association in ASSOCIATIONS:
                yield Form(after, root, "fp32", association)


def _replay(rows: Squares, orders: Sequence[Order], accumulate: str, square: str | None) -> Revealed:
    """The first combination of order, rounding of squares and form in which all rows are reproduced, or the nearest."""
    count = REPLAYED if rows.setup.n <= LARGE else FEWER
    x, weight = zero_sum(rows.setup.n, count, rows.setup.dtype, seed=1 << 20)
    out = rows.rows(x, weight, EPS)
    best = Revealed(orders[0], accumulate, name_of(out.dtype) or "", replayed=count)
    for way in (way for order in orders for way in by_product(Way(order, accumulate), square)):
        total = wide(way.total(wide(x), wide(x))).unsqueeze(-1)
        for form in _forms():
            again = rounded(form.rows(x, weight, total), out.dtype)
            matches = int((int_view(again) == int_view(out)).all(-1).sum())
            if matches > best.equal:
                best = replace(best, order=way.order, form=form, square=way.product, equal=matches)
            if matches == count:
                return best
    return best
