"""Confidence intervals over sequences, and the verdict they allow."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

MINIMUM_SEQUENCES = 25

# Spread below this share of the data's size is rounding of fp64 sums, not information about the population.
_ROUNDING = 1e-12
# Beyond so many sequences the estimate of how many are needed only says that the gate lies on the mean.
_COUNTABLE = 1e9
# Elements of one [resamples, sequences] temporary: 8 MiB in fp64.
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A mean and its two-sided confidence interval.

    estimate: NaN without sequences; NaN or infinite when a sum is.
    low, high: never NaN; infinite where the data give no bound.
    level: nominal coverage, 0.95 for a 95 % interval.
    sequences: sequences with at least one token.
    tokens: their tokens.
    method: "bootstrap-t"; "exact" when every sum is 0, then low = high = 0; "none" when there is no interval (low =
        -inf, high = inf): fewer than two sequences, a sum that is not finite, or sequences that are all alike, whose
        spread says nothing of the spread of others; "rule of three" for the rate of an event that was not seen in n
        trials: low = 0, high = 3 / n, which events that come in clusters can exceed.
    """

    estimate: float
    low: float
    high: float
    level: float
    sequences: int
    tokens: int
    method: Literal["bootstrap-t", "exact", "none", "rule of three"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """A verdict on one gate, with its reason in one sentence.

    needed_sequences, needed_tokens: how many like those given would decide, an estimate; None where the verdict is
        decided, or where the data say nothing of how many it takes.
    """

    status: Literal["pass", "fail", "inconclusive"]
    reason: str
    needed_sequences: int | None = None
    needed_tokens: int | None = None


def token_mean(sums: Tensor, counts: Tensor, *, level: float = 0.95, resamples: int = 2000, seed: int = 0) -> Interval:
    """The mean per token, sum(sums) / sum(counts), with a bootstrap-t interval that resamples sequences.

    Shapes: both [B]; row i holds the sum over the tokens of sequence i and their number. Dtypes: any real; computed in
    fp64. Units: those of `sums`. Sequences with count 0 are dropped. The same arguments give the same interval.
    With R the estimate and residuals e_i = s_i - R n_i, the standard error se is that of the linearised ratio
    estimator, sqrt(sum e_i^2) / sum n_i (Cochran, Sampling Techniques, 2.11 and 6.4, up to a factor of the number of
    sequences that cancels here). The interval is [R - t_hi se, R - t_lo se], where t_lo and t_hi are the k-th smallest
    and the k-th greatest of (R* - R) / se* over the resamples and k = floor((resamples + 1)(1 - level) / 2) (Efron and
    Tibshirani, An Introduction to the Bootstrap, 12.5).
    How far the nominal level holds is measured by benchmarks/coverage.py: for k3 whose top 1 % of tokens carry 80 % it
    does, from 25 sequences on, but the misses are not even: the upper bound lies below the truth more often than the
    lower one above it. No method sees a tail that the tokens given did not reach.
    A resample without spread has se* = 0 and counts as +inf or -inf by the sign of R* - R, as 0 if that is 0. Of two or
    three sequences, or of many of which fewer than four are not 0, so many resamples are such that a 95 % interval has
    an infinite bound: that is what they can support. Bounds are not clipped, a metric that can't be negative may have a
    negative `low`.
    Raises ValueError for shapes that differ or are not [B], negative or non-finite counts, a level outside (0, 1), or
    too few resamples for the level (k = 0).
    """
    return _ratio(*_kept(sums, counts), level=level, resamples=resamples, seed=seed)


def sequence_mean(
    sums: Tensor, counts: Tensor, *, level: float = 0.95, resamples: int = 2000, seed: int = 0
) -> Interval:
    """The mean over sequences of each sequence's mean per token, every sequence weighing the same.

    As `token_mean`, on sums / counts with a count of 1 for each sequence.
    """
    x, n = _kept(sums, counts)
    interval = _ratio(x / n, torch.ones_like(n), level=level, resamples=resamples, seed=seed)
    return replace(interval, tokens=int(n.sum()))


def judge(interval: Interval, gate: float, *, bit_equal: bool, nonfinite: int) -> Judgement:
    """The verdict on a metric that must lie below `gate`, decided by the first rule that applies.

    `gate` is in the units of the metric; `bit_equal` says that what all scored tokens are scored by has equal bits;
    `nonfinite` counts the tokens with NaN or infinite logits. Rules: non-finite logits fail; no sequences are
    inconclusive; equal bits pass at any size; a non-finite mean fails; low > gate fails; high < gate passes with
    `MINIMUM_SEQUENCES` sequences and is inconclusive with fewer; everything else is inconclusive. The number of
    sequences needed assumes that the distance from the estimate to the bound shrinks with 1 / sqrt(sequences), and
    that the estimate stays; the number of tokens, that sequences stay as long as these.
    Raises ValueError for a gate that is not positive and finite.
    """
    if not (math.isfinite(gate) and gate > 0):
        raise ValueError(f"gate is {gate}; a positive finite number expected")
    if nonfinite:
        return Judgement(status="fail", reason=f"tokens with NaN or infinite logits: {nonfinite}")
    if not interval.sequences:
        return Judgement(status="inconclusive", reason="no token was scored")
    if bit_equal:
        return Judgement(status="pass", reason="all bits are equal")
    if not math.isfinite(interval.estimate):
        return Judgement(status="fail", reason=f"the mean is {interval.estimate}")
    bounds = f"the {100 * interval.level:g}% interval {interval.low:.3g} to {interval.high:.3g}"
    if interval.low > gate:
        return Judgement(status="fail", reason=f"{bounds} lies above the gate {gate:g}")
    if interval.high >= gate:
        return _open(interval, gate, bounds)
    if interval.sequences < MINIMUM_SEQUENCES:
        size = f"{_sequences(interval.sequences)} given, {MINIMUM_SEQUENCES} needed to pass"
        return _needing(interval, MINIMUM_SEQUENCES, f"{bounds} lies below the gate {gate:g}, but {size}")
    return Judgement(status="pass", reason=f"{bounds} lies below the gate {gate:g}")


def _open(interval: Interval, gate: float, bounds: str) -> Judgement:
    """The verdict on an interval that reaches the gate: why it decides nothing, and how many sequences would."""
    given = f"{_sequences(interval.sequences)} ({interval.tokens} tokens)"
    if interval.method == "none":
        cause = "one is too few" if interval.sequences == 1 else "all alike, so their spread is unknown"
        reason = f"no interval from {given}: {cause}; at least {MINIMUM_SEQUENCES} different ones are needed"
        return Judgement(status="inconclusive", reason=reason)
    distance = abs(gate - interval.estimate)
    reach = interval.high - interval.estimate if interval.estimate < gate else interval.estimate - interval.low
    ratio = reach / distance if distance else math.inf
    estimated = interval.sequences * ratio * ratio
    least = max(MINIMUM_SEQUENCES, interval.sequences + 1)
    reason = f"{bounds} contains the gate {gate:g} with {given}"
    if not estimated <= _COUNTABLE:
        return Judgement(status="inconclusive", reason=f"{reason}; at least {least} such sequences are needed")
    needed = max(least, math.ceil(estimated))
    amount = f"about {needed} such sequences ({_tokens(interval, needed)} tokens)"
    return _needing(interval, needed, f"{reason}; {amount} are needed")


def _needing(interval: Interval, sequences: int, reason: str) -> Judgement:
    tokens = _tokens(interval, sequences)
    return Judgement(status="inconclusive", reason=reason, needed_sequences=sequences, needed_tokens=tokens)


def _tokens(interval: Interval, sequences: int) -> int:
    """The tokens of so many sequences of the mean length."""
    return math.ceil(interval.tokens * sequences / interval.sequences)


def _sequences(count: int) -> str:
    return f"{count} sequence" if count == 1 else f"{count} sequences"


def _kept(sums: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
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
        # In units of the largest sum, no square overflows or vanishes.
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
    """(R* - R) / se* of each resample, [resamples], from the residuals about R and the counts, both [m]."""
    generator = torch.Generator().manual_seed(seed)
    size = n.numel()
    rows = max(1, _CHUNK // size)
    parts = []
    for start in range(0, resamples, rows):
        drawn = torch.randint(size, (min(rows, resamples - start), size), generator=generator)
        e, m = residuals[drawn], n[drawn]
        total = m.sum(-1)
        # Residuals about R turn into residuals about R* by taking off (R* - R) n: no difference of large sums.
        shift = e.sum(-1) / total
        error = _standard_error(e - shift.unsqueeze(-1) * m, total)
        limit = torch.where(shift.abs() > rounding, shift.sign() * math.inf, 0.0)
        parts.append(torch.where(error > rounding, shift / error, limit))
    return torch.cat(parts)


def _standard_error(residuals: Tensor, total: Tensor) -> Tensor:
    """The linearised standard error of a ratio, from its residuals [..., m] and the sum of the counts [...].

    Without the factor sqrt(m / (m - 1)): it is the same in every resample and cancels in t times se.
    """
    return residuals.square().sum(-1).sqrt() / total
