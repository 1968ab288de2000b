"""Fractions, means and slopes with intervals over sequences."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist

import torch
from torch import Tensor

from moeparity.logs.diagnosis.finding import LINE, Evidence, FindingVerdict
from moeparity.metrics.interval import token_mean
from moeparity.metrics.verdict import Interval

LEVEL = 0.99
"""Nominal coverage of means. They are compared with what noise alone gives, so one in a hundred is off by chance."""

SHARE_LEVEL = 0.95
"""Nominal coverage of shares and slopes. A share is compared with `LINE`, which is far from what noise gives."""

BLOCKS = 1024
"""If there are more sequences, they are first summed into this many blocks, which are as independent as sequences are.
"""


def mean(name: str, sums: Tensor, counts: Tensor, unit: str = "", *, offset: float = 0.0) -> Evidence:
    """sum(sums) / sum(counts) + offset with its bootstrap-t interval; both fp64 [B], counts >= 0.

    `counts` may be any weights, such as sizes of what there is to explain: the statistic is a ratio of sums in any
    case.
    """
    bootstrap = interval(sums, counts)
    return Evidence(
        name=name,
        value=bootstrap.estimate + offset,
        low=bootstrap.low + offset,
        high=bootstrap.high + offset,
        level=LEVEL,
        unit=unit,
    )


def rate(name: str, sums: Tensor, counts: Tensor) -> Evidence:
    """As `mean`, for the rate of an event: within 0 and 1; at most 3 / n if the event was not seen in n tokens, and at
    least 1 - 3 / n if it was seen in all.
    """
    evidence = mean(name, sums, counts)
    low, high = bounds(evidence)
    total = float(counts.sum())
    if not evidence.value and total:
        high = 3 / total
    elif evidence.value == 1:
        low = 1 - 3 / total
    return replace(evidence, low=max(low, 0.0), high=min(high, 1.0))


def share(name: str, part: Tensor, whole: Tensor) -> Evidence:
    """sum(part) / sum(whole), at most 1, with its interval; both fp64 [B], part <= whole, possibly also |part| <=
    whole.

    If nearly all sequences are alike, as they are near a bound, bootstrap-t has nothing to draw from. Instead the
    interval has all s for which the mean of part - s whole does not differ from 0 (normal quantile, as in `slope`). It
    is then widened by twice the fraction of sequences that may be of another kind without one of them being seen: with
    B sequences at most 1 - (1 - level)^(1/B) (the exact rule of three); 2 is the whole range of a share. Eleven
    sequences that all have a share of 1 have a lower bound of 0.52.
    """
    positive = whole > 0
    count = int(positive.sum())
    evidence = slope(name, part[positive], whole[positive])
    if not count or not math.isfinite(evidence.value):
        return evidence
    reach = 2 * (1 - (1 - SHARE_LEVEL) ** (1 / count))
    low, high = bounds(evidence)
    return replace(evidence, low=low - reach, high=min(high + reach, 1.0))


def interval(sums: Tensor, counts: Tensor) -> Interval:
    """The interval of `token_mean` at `LEVEL`; of blocks if there are very many sequences."""
    x, n = (_blocks(column) for column in (sums, counts))
    return token_mean(x, n, level=LEVEL)


def _blocks(column: Tensor) -> Tensor:
    if column.numel() <= BLOCKS:
        return column
    # A block takes every BLOCKS-th sequence, so that it is spread over the log and drift does not look like spread.
    index = torch.arange(column.numel()) % BLOCKS
    return torch.zeros(BLOCKS, dtype=torch.float64).index_add_(0, index, column)


def slope(name: str, y: Tensor, x: Tensor) -> Evidence:
    """sum(y) / sum(x), fp64 [B] of any sign, with Fieller's interval over sequences (normal quantile).

    The interval has all b for which mean(y - b x) does not differ from 0; its bounds are infinite if mean(x) may be 0.
    Source: E. C. Fieller, "Some problems in interval estimation", JRSS B 16, 1954.
    """
    count = x.numel()
    bottom, top = float(x.sum()), float(y.sum())
    evidence = Evidence(
        name=name, value=top / bottom if bottom else math.nan, low=-math.inf, high=math.inf, level=SHARE_LEVEL
    )
    if count < 2 or not bottom:
        return evidence
    z = NormalDist().inv_cdf((1 + SHARE_LEVEL) / 2)
    mean_x, mean_y = bottom / count, top / count
    covariance = torch.cov(torch.stack([x, y])) * (z * z / count)
    a = mean_x**2 - float(covariance[0, 0])
    b = mean_x * mean_y - float(covariance[0, 1])
    c = mean_y**2 - float(covariance[1, 1])
    if a <= 0:
        return evidence
    root = max(0.0, b * b - a * c)  # below 0 by rounding alone, where all y are the same multiple of x
    return Evidence(
        name=name,
        value=evidence.value,
        low=(b - math.sqrt(root)) / a,
        high=(b + math.sqrt(root)) / a,
        level=SHARE_LEVEL,
    )


def bounds(evidence: Evidence) -> tuple[float, float]:
    """low and high of evidence that has an interval."""
    assert evidence.low is not None
    assert evidence.high is not None
    return evidence.low, evidence.high


def explains(share: Evidence) -> FindingVerdict:
    """`named` if the whole interval lies above `LINE` (the cause explains most), `ruled out` if it lies below."""
    return above(share, LINE)


def above(evidence: Evidence, line: float) -> FindingVerdict:
    """`named` if the whole interval lies above the line, `ruled out` if below, `not tested` without a number."""
    if not math.isfinite(evidence.value):
        return "not tested"
    low, high = bounds(evidence)
    if low > line:
        return "named"
    return "ruled out" if high < line else "undecided"


def negated(evidence: Evidence) -> Evidence:
    """The evidence with the opposite sign."""
    low, high = bounds(evidence)
    return replace(evidence, value=-evidence.value, low=-high, high=-low)
