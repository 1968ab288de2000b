"""Confidence intervals of means over sequences: bootstrap-t by resampling sequences, and a widened one for heavy
tails.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from statistics import NormalDist
from typing import Literal

import torch
from torch import Tensor

from moeparity.metrics.verdict import Interval

# Spread below this fraction of the data's size is rounding of fp64 sums, not information about the population.
_ROUNDING = 1e-12
# The size of one [resamples, sequences] temporary in elements: 8 MiB in fp64.
_CHUNK = 1 << 20
_KEPT = 4
# From this many degrees of freedom on, Student's t equals the normal distribution to three digits.
_NORMAL = 1000


def token_mean(sums: Tensor, counts: Tensor, *, level: float = 0.95, resamples: int = 2000, seed: int = 0) -> Interval:
    """The mean per token, sum(sums) / sum(counts), with a bootstrap-t interval that resamples sequences.

    sums, counts: [B], any real dtype; row i has the sum over the tokens of sequence i, and their number. Computed in
    fp64, in the units of `sums`. Sequences with count 0 are dropped. Equal arguments give equal intervals.
    With R the estimate and residuals e_i = s_i - R n_i, the standard error se is that of the linearised ratio
    estimator, sqrt(sum e_i^2) / sum n_i (Cochran, Sampling Techniques, 2.11 and 6.4, up to a factor of the number of
    sequences that cancels here). The interval is [R - t_hi se, R - t_lo se], where t_lo and t_hi are the k-th smallest
    and k-th largest of (R* - R) / se* over the resamples, and k = floor((resamples + 1)(1 - level) / 2) (Efron and
    Tibshirani, An Introduction to the Bootstrap, 12.5).
    benchmarks/coverage.py measures how far the nominal level holds. For k3 of which the top 1 % of tokens carry 80 % it
    does, from 25 sequences on, but the misses are uneven: the upper bound lies below the truth more often than the
    lower bound above it. No method sees a tail that the given tokens did not reach.
    A resample without spread has se* = 0 and counts as +inf or -inf by the sign of R* - R, as 0 if that is 0. With two
    or three sequences, or if fewer than four of many are not 0, there are so many of these that a 95 % interval has an
    infinite bound: the data support no more. Bounds are not clipped, so a metric that can't be negative may have a
    negative `low`. Raises ValueError for shapes that differ or are not [B], negative or non-finite counts, a level
    outside (0, 1), or too few resamples for the level (k = 0).
    """
    return _ratio(*_with_tokens(sums, counts), level=level, resamples=resamples, seed=seed)


def sequence_mean(
    sums: Tensor, counts: Tensor, *, level: float = 0.95, resamples: int = 2000, seed: int = 0
) -> Interval:
    """The mean over sequences of each sequence's mean per token; every sequence has the same weight.

    It is `token_mean` of sums / counts with a count of 1 for each sequence.
    """
    x, n = _with_tokens(sums, counts)
    interval = _ratio(x / n, torch.ones_like(n), level=level, resamples=resamples, seed=seed)
    return replace(interval, tokens=int(n.sum()))


def tail_mean(sums: Tensor, counts: Tensor, *, level: float = 0.95, resamples: int = 2000, seed: int = 0) -> Interval:
    """As `token_mean`, but widened for heavy tails: for sums that few sequences carry, such as differences of
    divergences.

    No resample contains a sequence that was not given; two steps make up for that. First, the interval is made at least
    as wide as that of Student's t with one degree of freedom less than the number of sequences that carry the mean.
    This number is (sum w)^2 / sum w^2 (Kish's effective sample size, rounded to a whole number of at least 1) of the
    absolute sums or of the counts, whichever is smaller. Second, each bound is moved by the effect of one more sequence
    like that with the largest residual. If many similar sequences carry the mean, the first step adds nothing and the
    second little. `benchmarks/tails.py` measures the coverage. `counts` may be any weights that are not negative, so
    that this is also the interval of a ratio of two divergences.
    """
    x, n = _with_tokens(sums, counts)
    narrow = _ratio(x, n, level=level, resamples=resamples, seed=seed)
    if narrow.method != "bootstrap-t":
        return narrow
    residuals, size = x - narrow.estimate * n, n.numel()
    unit = float(residuals.abs().max())
    error = float(_standard_error(residuals / unit, n.sum())) * unit * math.sqrt(size / (size - 1))
    carrying = math.floor(min(effective(x.abs()), effective(n)))
    reach = student((1 + level) / 2, max(1, carrying - 1)) * error
    one_more = float((residuals.abs() / (n.sum() + n)).max())
    return replace(
        narrow,
        low=min(narrow.low, narrow.estimate - reach) - one_more,
        high=max(narrow.high, narrow.estimate + reach) + one_more,
        method="bootstrap-t, widened",
    )


def effective(weights: Tensor) -> float:
    """How many of [m] weights, none negative, carry their sum: (sum w)^2 / sum w^2 (Kish); 0 if all are 0."""
    unit = float(weights.max()) if weights.numel() else 0.0
    scaled = weights / unit if unit > 0 else weights[:0]
    return float(scaled.sum()) ** 2 / float(scaled.square().sum()) if scaled.numel() else 0.0


def student(probability: float, freedom: int) -> float:
    """The quantile of Student's t with an integer number of degrees of freedom, for a probability from 0.5 to below 1.

    Found by bisection of the distribution function in closed form (Abramowitz and Stegun 26.7.3 and 26.7.4).
    Raises ValueError for less than one degree of freedom, or a probability out of [0.5, 1).
    """
    if freedom < 1 or not 0.5 <= probability < 1:
        raise ValueError(f"{freedom} degrees of freedom, probability {probability}; at least 1 and [0.5, 1) expected")
    if freedom >= _NORMAL:
        return NormalDist().inv_cdf(probability)
    low, high = 0.0, math.pi / 2
    for _ in range(64):
        angle = (low + high) / 2
        low, high = (angle, high) if _within(angle, freedom) < 2 * probability - 1 else (low, angle)
    return math.tan(low) * math.sqrt(freedom)


def _within(angle: float, freedom: int) -> float:
    """The probability that |t| is below tan(angle) * sqrt(freedom)."""
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term = total = cosine if odd else 1.0
    for k in range(3 if odd else 2, freedom, 2):
        term *= cosine * cosine * (k - 1) / k
        total += term
    if not odd:
        return sine * total
    return 2 / math.pi * (angle + (sine * total if freedom > 1 else 0.0))


def _with_tokens(sums: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Sums and counts in fp64 on the CPU, without the sequences that have no token."""
    if sums.dim() != 1 or sums.shape != counts.shape:
        raise ValueError(f"equal shapes [B] expected, given {tuple(sums.shape)} and {tuple(counts.shape)}")
    x, n = sums.double().cpu(), counts.double().cpu()
    if not bool((n.isfinite() & (n >= 0)).all()):
        raise ValueError("counts must be finite and not negative")
    return x[n > 0], n[n > 0]


def _ratio(x: Tensor, n: Tensor, *, level: float, resamples: int, seed: int) -> Interval:
    """The interval of sum(x) / sum(n) for fp64 [m] `x` and positive `n`."""
    if not 0 < level < 1:
        raise ValueError(f"level is {level}; a number between 0 and 1 expected")
    rank = math.floor((resamples + 1) * (1 - level) / 2)
    if rank < 1:
        raise ValueError(f"{resamples} resamples are too few for level {level}")
    size = x.numel()
    total = float(n.sum())
    estimate = float(x.sum()) / total if size else math.nan
    low, high = -math.inf, math.inf
    method: Literal["bootstrap-t", "exact", "none"] = "none"
    if size and not bool(x.any()):
        low, high, method = 0.0, 0.0, "exact"
    elif size > 1 and math.isfinite(estimate):
        # In units of the largest sum, squares neither overflow nor vanish.
        unit = float(x.abs().max())
        residuals = (x - estimate * n) / unit
        rounding = _ROUNDING * float((x.abs() / unit).sum()) / total
        error = float(_standard_error(residuals, n.sum()))
        if error > rounding:
            t = _studentised(residuals, n, rounding, resamples, seed).sort().values
            low, high = (estimate - float(t[-rank]) * error * unit, estimate - float(t[rank - 1]) * error * unit)
            method = "bootstrap-t"
    return Interval(
        estimate=estimate, low=low, high=high, level=level, sequences=size, tokens=int(total), method=method
    )


def _studentised(residuals: Tensor, n: Tensor, rounding: float, resamples: int, seed: int) -> Tensor:
    """(R* - R) / se* of each resample, [resamples]. residuals: about R, [m]; n: the counts, [m]."""
    size, parts = n.numel(), []
    for sample in _resampled(size, resamples, seed):
        e, m = residuals[sample], n[sample]
        total = m.sum(-1)
        # Residuals about R* are residuals about R minus (R* - R) n, which avoids differences of large sums.
        shift = e.sum(-1) / total
        error = _standard_error(e - shift.unsqueeze(-1) * m, total)
        limit = torch.where(shift.abs() > rounding, shift.sign() * math.inf, 0.0)
        parts.append(torch.where(error > rounding, shift / error, limit))
    return torch.cat(parts)


@lru_cache(maxsize=_KEPT)
def _few_resampled(size: int, resamples: int, seed: int) -> tuple[Tensor, ...]:
    return tuple(_drawn(size, resamples, seed))


def _resampled(size: int, resamples: int, seed: int) -> Iterable[Tensor]:
    """The sequences of each resample, int64 [rows, size], in parts; kept if they are small, since one log has many
    intervals.
    """
    return (_few_resampled if size * resamples <= _CHUNK else _drawn)(size, resamples, seed)


def _drawn(size: int, resamples: int, seed: int) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    rows = max(1, _CHUNK // size)
    for start in range(0, resamples, rows):
        yield torch.randint(size, (min(rows, resamples - start), size), generator=generator)


def _standard_error(residuals: Tensor, total: Tensor) -> Tensor:
    """The linearised standard error of a ratio. residuals: [..., m]; total: the sum of the counts, [...].

    The factor sqrt(m / (m - 1)) is left out: it is the same in every resample and cancels in t times se.
    """
    return residuals.square().sum(-1).sqrt() / total
