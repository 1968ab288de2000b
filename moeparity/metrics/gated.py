"""The value of a gate's metric with its interval, from sums over the tokens of each sequence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from moeparity.metrics.declaration import Metric
from moeparity.metrics.gating import TWO_SIDED, parity
from moeparity.metrics.interval import token_mean
from moeparity.metrics.quantities import SEQUENCE, SHARES, Sums
from moeparity.metrics.verdict import Interval

_DRAWS = 40_000_000


def needed(metric: Metric) -> tuple[str, ...]:
    """The token quantities whose sums a mean needs."""
    of = metric.reduce.of
    return SEQUENCE[of][0] if metric.reduce.kind == "mean over sequences" else (of,)


def per_sequence(metric: Metric, sums: Mapping[str, Tensor], counts: Tensor) -> tuple[Tensor, Tensor]:
    """Numerators and denominators, both fp64 [B]; the mean, without its offset, is the ratio of their totals.

    sums: of each `needed` quantity, fp64 [B]. counts: of scored tokens, fp64 [B], all above 0.
    Raises ValueError for a metric that is not a mean.
    """
    kind, of = metric.reduce.kind, metric.reduce.of
    if kind == "token mean":
        return sums[of], counts
    if kind == "sequence mean":
        return sums[of] / counts, torch.ones_like(counts)
    if kind == "mean over sequences":
        values = SEQUENCE[of][1](Sums(counts, sums))
        unknown = torch.stack([column.isnan() for column in sums.values()]).any(0)
        # A threshold would turn NaN into 0.
        return values.masked_fill(unknown, torch.nan), torch.ones_like(counts)
    raise ValueError(f"{metric.name} is a {kind}, no mean")


def interval(metric: Metric, numerators: Tensor, denominators: Tensor, tokens: int) -> Interval:
    """The bootstrap-t interval over sequences of a mean, without its offset; 2000 resamples, fewer from 20,000
    sequences on.

    The rate of an event that was never seen is bounded by 3 / n instead, for n tokens or sequences.
    """
    resamples = max(400, min(2000, _DRAWS // max(1, numerators.numel())))
    bootstrap = token_mean(numerators, denominators, resamples=resamples)
    if metric.reduce.of in SHARES and bootstrap.method == "exact":
        # An event that was not seen may still have a rate above 0.
        return replace(bootstrap, tokens=tokens, high=min(1.0, 3 / bootstrap.tokens), method="rule of three")
    return replace(bootstrap, tokens=tokens)


def shift_interval(value: Interval, offset: float) -> Interval:
    """The same interval moved by `offset`."""
    return replace(value, estimate=value.estimate + offset, low=value.low + offset, high=value.high + offset)


def from_parity(metric: Metric, value: Interval) -> Interval:
    """The interval of the metric's distance from parity; of its absolute value if the metric can lie on both sides
    of parity.
    """
    moved = shift_interval(value, -parity(metric))
    if metric.reduce.of not in TWO_SIDED:
        return moved
    low, high = moved.low, moved.high
    least = 0.0 if low <= 0 <= high else min(abs(low), abs(high))
    return replace(moved, estimate=abs(moved.estimate), low=least, high=max(abs(low), abs(high)))
