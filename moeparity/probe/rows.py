"""The tree of one class of rows of an RMSNorm or a softmax; for RMSNorm also what is done around the sum."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from moeparity.numerics.bits import int_view
from moeparity.numerics.dtypes import name_of
from moeparity.numerics.orders import Order
from moeparity.numerics.rounding import product, rounded, wide
from moeparity.numerics.summation import sum_axis
from moeparity.probe.compact import compact
from moeparity.probe.nonnegative import Exponentials, Squares
from moeparity.probe.replay import AFTER, zero_sum
from moeparity.probe.triplets import reveal_triplets

REPLAYED, FEWER, LARGE = 256, 64, 2048
EPS = 2.0**-20

ASSOCIATIONS = ("x_rstd_first", "weight_rstd_first", "weight_x_first")


@dataclass(frozen=True, slots=True)
class Form:
    """How an RMSNorm goes on from the sum of squares, as op rms_norm names it; `after` makes the mean."""

    after: str
    root: str
    normalized: str
    association: str

    @property
    def sites(self) -> tuple[tuple[str, str], ...]:
        """Attributes of op rms_norm."""
        if self.normalized == "model":
            return (("normalized", "model"),)
        return (("normalized", "fp32"), ("association", self.association))

    def __str__(self) -> str:
        return f"{self.after} + eps, {self.root}"

    def rows(self, x: torch.Tensor, weight: torch.Tensor, order: Order) -> torch.Tensor:
        """x [P, n], weight [n] -> [P, n], with an eps of 2^-20."""
        total = sum_axis(wide(x).square(), order, -1, accumulate=torch.float32, executor="eager").unsqueeze(-1)
        n = torch.tensor(float(x.shape[-1]))
        mean = total / n if self.after == AFTER[1] else total * (1 / n)
        rstd = torch.rsqrt(mean + EPS) if self.root == "rsqrt" else 1 / torch.sqrt(mean + EPS)
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
    """order and what its additions round to; `form`, and how many of how many whole rows came out again in it."""

    order: Order
    accumulate: str
    output: str
    form: Form | None = None
    equal: int = 0
    replayed: int = 0


def rows_at(rows: Squares | Exponentials, at: Sequence[int], replay: Order | None = None) -> Revealed:
    """Probe rows `at`, and replay whole rows in `replay`, by default the order found. Raises NoTree as `start` does."""
    rows.start(at)
    shape = reveal_triplets(rows.ask, rows.setup.n)
    order = compact(shape)[0]
    accumulate = {24: "fp32", 8: "bf16", 11: "fp16"}[rows.bits]
    if isinstance(rows, Exponentials):
        return Revealed(order, accumulate, "fp32")
    return replace(_replay(rows, replay or order, accumulate), order=order)


def _forms() -> Iterator[Form]:
    for after in AFTER[1:]:
        for root in ("rsqrt", "1 / sqrt"):
            yield Form(after, root, "model", "")
            for association in ASSOCIATIONS:
                yield Form(after, root, "fp32", association)


def _replay(rows: Squares, order: Order, accumulate: str) -> Revealed:
    count = REPLAYED if rows.setup.n <= LARGE else FEWER
    x, weight = zero_sum(rows.setup.n, count, rows.setup.dtype, seed=1 << 20)
    out = rows.rows(x, weight, EPS)
    best = Revealed(order, accumulate, name_of(out.dtype) or "", None, 0, count)
    for form in _forms():
        again = rounded(form.rows(x, weight, order), out.dtype)
        matches = int((int_view(again) == int_view(out)).all(-1).sum())
        if matches > best.equal:
            best = Revealed(order, accumulate, best.output, form, matches, count)
        if matches == count:
            break
    return best
