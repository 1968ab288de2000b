"""An interval, the gate with which it is compared, and the resulting verdict; needs no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

MINIMUM_SEQUENCES = 25
"""With fewer sequences a verdict passes only if all bits are equal."""

# A larger number of needed sequences only says that the gate lies on the mean, so it is not given.
_COUNTABLE = 1e9

Status = Literal["pass", "fail", "inconclusive"]
EXIT_CODES: dict[Status, int] = {"pass": 0, "fail": 1, "inconclusive": 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A mean and its two-sided confidence interval.

    estimate: NaN without sequences; NaN or infinite if a sum is.
    low, high: never NaN; infinite if the data give no bound.
    level: nominal coverage, 0.95 for a 95 % interval.
    method: "bootstrap-t"; "bootstrap-t, widened" for heavy tails; "exact" if every sum is 0, then low = high = 0;
        "none" if there is no interval (low = -inf, high = inf): fewer than two sequences, a sum that is not finite, or
        sequences that are all alike, whose spread says nothing about others; "rule of three" for the rate of an event
        that was not seen in n trials: low = 0, high = 3 / n, which events that come in clusters can exceed.
    sequences, tokens: number of sequences with at least one token, and of their tokens; not in the JSON.
    """

    estimate: float
    low: float
    high: float
    level: float
    method: Literal["bootstrap-t", "bootstrap-t, widened", "exact", "none", "rule of three"]
    sequences: int = field(default=0, metadata={"json": False})
    tokens: int = field(default=0, metadata={"json": False})


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """A bound, in the units of the metric, below which the mean per token or per sequence must lie for parity.

    If the metric is not 0 at parity, its distance from the parity value is bounded (`moeparity/metrics/gating.py`).
    """

    metric: str
    below: float
    reduce: str = "token"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The gate and the decision, with its reason in one sentence; `value` is in the units of the metric.

    needed_sequences, needed_tokens: an estimate of how many like these would decide; None if the verdict is decided, or
        if the data do not tell.
    of_record: whether a record decided the verdict, rather than the metric between both sides; not in the JSON.
    """

    status: Status
    reason: str
    metric: str
    reduce: str
    below: float
    value: Interval
    needed_sequences: int | None = None
    needed_tokens: int | None = None
    of_record: bool = field(default=False, metadata={"json": False})

    @property
    def exit_code(self) -> int:
        """0 pass, 1 fail, 3 inconclusive."""
        return EXIT_CODES[self.status]


def judge(interval: Interval, gate: Gate, *, bit_equal: bool, nonfinite: int, outside: int = 0) -> Verdict:
    """The verdict on a metric that must lie below its gate, by the first rule that applies.

    bit_equal: the values by which all scored tokens are scored have equal bits. nonfinite: number of tokens with NaN or
    infinite logits. outside: number of sampled tokens that a side leaves out of what it samples from. Rules: non-finite
    logits fail; tokens outside fail; no sequences are inconclusive; equal bits pass at any size; a
    non-finite mean fails; low > gate fails; high < gate passes with at least `MINIMUM_SEQUENCES` sequences and is
    inconclusive with fewer; everything else is inconclusive. The number of sequences needed assumes that the estimate
    stays, and that its distance from a bound shrinks with 1 / sqrt(sequences); the number of tokens, that sequences
    keep their length. Raises ValueError for a gate that is not positive and finite.
    """
    if not (math.isfinite(gate.below) and gate.below > 0):
        raise ValueError(f"gate is {gate.below}; a positive finite number expected")
    status, reason, sequences = _decision(
        interval, gate.below, bit_equal=bit_equal, nonfinite=nonfinite, outside=outside
    )
    return Verdict(
        status=status,
        reason=reason,
        metric=gate.metric,
        reduce=gate.reduce,
        below=gate.below,
        value=interval,
        needed_sequences=sequences,
        needed_tokens=None if sequences is None else _tokens(interval, sequences),
    )


_Decision = tuple[Status, str, int | None]
"""Status, reason, and how many sequences would decide."""


def _decision(interval: Interval, gate: float, *, bit_equal: bool, nonfinite: int, outside: int) -> _Decision:
    if nonfinite:
        return "fail", f"tokens with NaN or infinite logits: {nonfinite}", None
    if outside:
        return "fail", f"sampled tokens outside the kept set, of log-probability -inf: {outside}", None
    if not interval.sequences:
        return "inconclusive", "no token was scored", None
    if bit_equal:
        return "pass", "all bits are equal", None
    if not math.isfinite(interval.estimate):
        return "fail", f"the mean is {interval.estimate}", None
    low, high = ("no bound" if math.isinf(bound) else f"{bound:.3g}" for bound in (interval.low, interval.high))
    bounds = f"the {100 * interval.level:g}% interval {low} to {high}"
    if interval.low > gate:
        return "fail", f"{bounds} lies above the gate {gate:g}", None
    if interval.high >= gate:
        return _indecision(interval, gate, bounds)
    if interval.sequences < MINIMUM_SEQUENCES:
        size = f"{_sequences(interval.sequences)} given, {MINIMUM_SEQUENCES} needed to pass"
        return "inconclusive", f"{bounds} lies below the gate {gate:g}, but {size}", MINIMUM_SEQUENCES
    return "pass", f"{bounds} lies below the gate {gate:g}", None


def _indecision(interval: Interval, gate: float, bounds: str) -> _Decision:
    """The decision on an interval that contains the gate: why it is open, and how many sequences would decide."""
    size = f"{_sequences(interval.sequences)} ({interval.tokens} tokens)"
    least = max(MINIMUM_SEQUENCES, interval.sequences + 1)
    if interval.method == "none":
        cause = "one is too few" if interval.sequences == 1 else "all alike, so their spread is unknown"
        reason = f"no interval from {size}: {cause}; at least {MINIMUM_SEQUENCES} different ones are needed"
        return "inconclusive", reason, None
    if math.isinf(interval.low) and math.isinf(interval.high):
        return "inconclusive", f"no interval from {size}; at least {least} such sequences are needed", None
    sequences = sequences_needed(interval.estimate, (interval.low, interval.high), gate, interval.sequences)
    reason = f"{bounds} contains the gate {gate:g} with {size}"
    if sequences is None:
        return "inconclusive", f"{reason}; at least {least} such sequences are needed", None
    amount = f"about {sequences} such sequences ({_tokens(interval, sequences)} tokens)"
    return "inconclusive", f"{reason}; {amount} are needed", sequences


def sequences_needed(estimate: float, bounds: tuple[float, float], line: float, sequences: int) -> int | None:
    """How many sequences like these would put the whole interval on one side of `line`, if the estimate stays.

    The distance from the estimate to a bound shrinks with 1 / sqrt(sequences). The answer is at least
    `MINIMUM_SEQUENCES`, and at least one more than are given. None if the data do not tell: an interval without a
    bound, or an estimate on the line.
    """
    reach = bounds[1] - estimate if estimate < line else estimate - bounds[0]
    distance = abs(line - estimate)
    ratio = reach / distance if distance else math.inf
    estimated = sequences * ratio * ratio
    if not estimated <= _COUNTABLE:
        return None
    return max(MINIMUM_SEQUENCES, sequences + 1, math.ceil(estimated))


def _tokens(interval: Interval, sequences: int) -> int:
    """The number of tokens in this many sequences of the mean length."""
    return math.ceil(interval.tokens * sequences / interval.sequences)


def _sequences(count: int) -> str:
    return f"{count} sequence" if count == 1 else f"{count} sequences"
