"""Kernel of `rms_norm`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from moeparity.numerics import cuda
from moeparity.numerics.dtypes import name_of
from moeparity.numerics.orders import NATIVE, Order, OrderError, parse
from moeparity.numerics.rounding import product, rounded, wide, working
from moeparity.numerics.special_functions.functions import approximate
from moeparity.numerics.summation import sum_axis
from moeparity.ops.attribute import RefusedError
from moeparity.ops.kernels.norm_welford import mean_square
from moeparity.ops.norm.launches import WELFORD_THREADS, Moments, te_moments, te_order
from moeparity.ops.norm.reductions import order_of
from moeparity.ops.norm.rms_norm import (
    APPROX,
    DIV_FULL,
    IEEE,
    RECIPROCAL,
    SQRT_RCP,
    TRANSFORMER_ENGINE,
    TWO_PASS,
    WELFORD,
    launch_of,
)


def rms_norm(
    x: torch.Tensor, *, w: Mapping[str, torch.Tensor], p: Mapping[str, Any], at: Mapping[str, Any]
) -> torch.Tensor:
    """x [..., C] of any float dtype -> [..., C] or [..., heads, C / heads].

    The statistic is in fp32, or in fp64 if x or the squares are. Raises RefusedError for a launch that a rule refuses.
    """
    offset = p.get("offset", 0.0) if at["offset"] == "config" else at["offset"]
    x_f, weight = wide(x), _weight(w["weight"], offset, at["weight"])
    # An edge may hand over fp32, or a variant keep it; the dtype in which the kernel loads rows is the narrower one.
    stored = min(at["output"], x.dtype, key=lambda dtype: dtype.itemsize)
    rstd = _rsqrt(_statistic(x_f, at, stored) + (p["eps"] if at["eps"] == "config" else at["eps"]), at["rsqrt"])
    if torch.promote_types(x.dtype, at["scaled"]) != at["scaled"]:
        x_f = wide(rounded(x, at["scaled"]))
    association = at.get("association", "x_rstd_first")
    if association == "weight_rstd_first":
        out = rounded(x_f * (rstd * wide(weight)), at["output"])
    elif association == "weight_x_first":
        out = rounded(x_f * wide(weight) * rstd, at["output"])
    else:
        out = product(weight, rounded(x_f * rstd, at["normalized"]), at["output"])
    return out if p["heads"] is None else out.view(*out.shape[:-1], p["heads"], -1)


def _weight(weight: torch.Tensor, offset: float, dtype: torch.dtype) -> torch.Tensor:
    """weight + offset, rounded; the weight itself if the offset is 0 and the dtype can hold all its values."""
    if offset:
        weight = weight.to(working(weight.dtype, dtype)) + offset
    elif torch.promote_types(weight.dtype, dtype) == dtype:
        return weight
    return rounded(weight, dtype)


def _statistic(x: torch.Tensor, at: Mapping[str, Any], stored: torch.dtype) -> torch.Tensor:
    """x [..., C] in fp32 or fp64 -> its mean square [..., 1], as a kernel computes it for rows stored in `stored`."""
    launch = launch_of(at, x.shape[-1], x.numel() // x.shape[-1], str(name_of(stored)))
    if at["statistic"] == WELFORD:
        return mean_square(x, WELFORD_THREADS)
    if at["statistic"] == TRANSFORMER_ENGINE:
        tuned = te_moments(launch)
        if tuned is not None:
            return _merged_moments(x, tuned, at["square"])
        return _mean(x, parse(te_order(launch)), RECIPROCAL, square=at["square"])
    try:
        order = None if at["order"] == NATIVE else order_of(at["order"], launch)
    except OrderError as error:
        raise RefusedError("order", f"{error} Set another `order`.") from None
    if at["statistic"] == TWO_PASS:
        mean = _mean(x, order, at["mean"])
        return _mean(x - mean, order, at["mean"], square=at["square"]) + mean * mean
    return _mean(x, order, at["mean"], square=at["square"])


def _mean(x: torch.Tensor, order: Order | None, form: str, *, square: torch.dtype | None = None) -> torch.Tensor:
    """The mean of x over its last axis, [..., 1]; with `square`, of its squares in that dtype.

    Where `order` is None, torch's own mean.
    """
    if order is None:
        values = (x if square is None else _squares(x, square)).to(working(x.dtype, square or x.dtype))
        if form == NATIVE:
            return values.mean(-1, keepdim=True)
        total = values.sum(-1, keepdim=True)
    else:
        total = _sum(x, order, square=square).unsqueeze(-1)
    if form == RECIPROCAL or (form == NATIVE and x.is_cuda):
        return total * (1 / x.shape[-1])
    # Divide by a tensor, since torch's GPU kernel multiplies by the reciprocal of a number.
    count = torch.full_like(total, x.shape[-1])
    return cuda.div_full(total, count) if form == DIV_FULL and total.dtype == torch.float32 else total / count


def _squares(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return rounded(x.to(working(x.dtype, dtype)).pow(2), dtype)


def _sum(x: torch.Tensor, order: Order, *, square: torch.dtype | None) -> torch.Tensor:
    """The sum of x, or of its squares, over the last axis; an order with fma contracts the squares."""
    if square is None:
        return sum_axis(x, _plain(order), -1, accumulate=x.dtype)
    accumulate = working(x.dtype, square)
    if order.fma:
        x = x.to(accumulate)
        return sum_axis(x, order, -1, accumulate=accumulate, times=x)
    return sum_axis(_squares(x, square), order, -1, accumulate=accumulate)


def _plain(order: Order) -> Order:
    first = order.levels[0]
    return Order((replace(first, words=tuple(word for word in first.words if word != "fma")), *order.levels[1:]))


def _merged_moments(x: torch.Tensor, tuned: Moments, square: torch.dtype) -> torch.Tensor:
    """M2 / C + mean^2 [..., 1] of x [..., C], from the moments of each warp's part, merged by halves.

    Imitates TransformerEngine's tuned kernel and `warp_chan_upd_dynamic`. The lengths of parts are powers of two, so
    their weights in a merger round nothing. Whether M2 / C + mean^2 is contracted there is not known; here it is not.
    """
    parts = x.reshape(*x.shape[:-1], -1, tuned.warps, 32 * tuned.vector).transpose(-3, -2).flatten(-2)
    mean = _mean(parts, parse(tuned.order), RECIPROCAL)
    m2 = _sum(parts - mean, parse(tuned.order), square=square)
    mean, count = mean.squeeze(-1), parts.shape[-1]
    while mean.shape[-1] > 1:
        (mean_a, mean_b), (m2_a, m2_b) = mean.chunk(2, -1), m2.chunk(2, -1)
        delta = mean_a - mean_b
        m2 = m2_a + m2_b + delta * delta * count * count * (1 / (2 * count))
        mean, count = (count * mean_a + count * mean_b) * (1 / (2 * count)), 2 * count
    return m2 * (1 / x.shape[-1]) + mean * mean


def _rsqrt(x: torch.Tensor, form: str) -> torch.Tensor:
    """1 / sqrt(x) in x's dtype.

    `ieee`: fp64's result is within one ulp, and no fp32 number's lies nearer than 2^-51.7 to a tie (all significands
    were tried), so rounding it is correct. `sqrt_div` also takes its root in fp64, since torch's own in fp32 is MKL's
    on CPU, which is not correctly rounded. `approx`, `sqrt_rcp`: special_functions/functions.py.
    """
    if form == NATIVE or x.dtype == torch.float64:
        return torch.rsqrt(x)
    if form == APPROX:
        return approximate("rsqrt", x.float())
    if form == SQRT_RCP:
        return approximate("rcp", approximate("sqrt", x.float(), ftz=True))
    if form == IEEE:
        return torch.rsqrt(x.double()).float()
    return torch.reciprocal(torch.sqrt(x.double()).float())
