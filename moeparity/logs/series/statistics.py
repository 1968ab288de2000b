"""Moving average, trend and spikes of values at increasing, possibly irregular, steps; functions of plain numbers."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, median

import torch

from moeparity.logs.series.data import Trend

_MAD = 1.4826
# The chance that one of all residuals, if they are normal, is called a spike.
_ALARM = 0.01
# With more points, pairs are made of medians of blocks; this many points have 2 million pairs.
_POINTS = 2000


def ema(steps: Sequence[float], values: Sequence[float], tau: float) -> list[float]:
    """The time-weighted exponential moving average: y += (1 - exp(-dt / tau)) (x - y), dt the steps since the last
    value.

    tau is in steps. The first value starts the average. A value that is not finite leaves it unchanged, and its time
    counts towards the next value; before any finite value it is NaN. Raises ValueError for a tau that is not positive,
    or steps that do not increase.
    """
    if not tau > 0:
        raise ValueError(f"tau is {tau}; a number of steps above 0 expected")
    _increasing(steps)
    averages: list[float] = []
    last, average = math.nan, math.nan
    for step, value in zip(steps, values, strict=True):
        if math.isfinite(value):
            average = value if math.isnan(average) else average - math.expm1(-(step - last) / tau) * (value - average)
            last = step
        averages.append(average)
    return averages


def trend(steps: Sequence[float], values: Sequence[float]) -> Trend:
    """The trend of the finite values, or of their logarithms if all are positive. NaN with p = 1 for fewer than 4
    values.

    Beyond 2000 points, blocks of neighbours are replaced by their medians. Raises ValueError for steps that do not
    increase.
    """
    _increasing(steps)
    pairs = [(step, value) for step, value in zip(steps, values, strict=True) if math.isfinite(value)]
    log = bool(pairs) and all(value > 0 for _, value in pairs)
    if log:
        pairs = [(step, math.log(value)) for step, value in pairs]
    count = len(pairs)
    if count < 4:
        return Trend(slope=math.nan, p=1.0, points=count, log=log)
    size = math.ceil(count / _POINTS)
    blocks = [pairs[start : start + size] for start in range(0, count, size)]
    x, y = (
        torch.tensor([median(pair[column] for pair in block) for block in blocks], dtype=torch.float64)
        for column in (0, 1)
    )
    first, second = torch.triu_indices(len(x), len(x), offset=1)
    rises = y[second] - y[first]
    slopes = (rises / (x[second] - x[first])).sort().values
    middle = len(slopes) // 2
    slope = float(slopes[middle] if len(slopes) % 2 else (slopes[middle - 1] + slopes[middle]) / 2)
    return Trend(slope=slope, p=_kendall(int(rises.sign().sum()), y.tolist()), points=count, log=log)


def _kendall(score: int, values: list[float]) -> float:
    """The two-sided p of the Mann-Kendall S, with the variance for ties and the continuity correction."""
    ties = [count for count in Counter(values).values() if count > 1]
    n = len(values)
    variance = (n * (n - 1) * (2 * n + 5) - sum(t * (t - 1) * (2 * t + 5) for t in ties)) / 18
    if not variance or not score:
        return 1.0
    z = (abs(score) - 1) / math.sqrt(variance)
    return min(1.0, 2 * NormalDist().cdf(-z))


@dataclass(frozen=True, slots=True, kw_only=True)
class Spike:
    """A point above its neighbourhood. index: into the values. distance: in robust standard deviations."""

    index: int
    distance: float


def spikes(values: Sequence[float], *, window: int = 21) -> tuple[Spike, ...]:
    """Points that stand out above the running median.

    A residual is a value minus the median of the `window` values around it; of logarithms if all values are positive.
    The spread of residuals is 1.4826 times the median of |residual| (MAD). A spike lies above the normal quantile that
    some of as many normal residuals exceeds with a chance of 1 %: 3.7 for 100 points. An infinite value always is a
    spike. If more than half of the residuals are 0, any residual above 0 is one. Fewer than 8 finite values have none.
    """
    finite = [index for index, value in enumerate(values) if math.isfinite(value)]
    always = [Spike(index=index, distance=math.inf) for index, value in enumerate(values) if value == math.inf]
    if len(finite) < 8:
        return tuple(always)
    levels = [values[index] for index in finite]
    if all(value > 0 for value in levels):
        levels = [math.log(value) for value in levels]
    half = window // 2
    residuals = [value - median(levels[max(0, at - half) : at + half + 1]) for at, value in enumerate(levels)]
    spread = _MAD * median(abs(residual) for residual in residuals)
    limit = NormalDist().inv_cdf(1 - _ALARM / len(levels))
    outliers = [
        Spike(index=index, distance=residual / spread if spread else math.inf)
        for index, residual in zip(finite, residuals, strict=True)
        if residual > limit * spread
    ]
    return tuple(sorted(outliers + always, key=lambda spike: spike.index))


def _increasing(steps: Sequence[float]) -> None:
    if any(later <= earlier for earlier, later in itertools.pairwise(steps)):
        raise ValueError("steps must increase")
