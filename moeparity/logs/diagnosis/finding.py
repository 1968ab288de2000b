"""What a diagnosis says: findings, each with its verdict, its evidence in numbers and what to do. Plain data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from moeparity.output.json import plain

Tier = Literal["staleness", "semantics", "inference path", "objective"]
TIERS: tuple[Tier, ...] = ("staleness", "semantics", "inference path", "objective")
Verdict = Literal["named", "ruled out", "undecided", "not tested", "described"]
"""described: numbers of which no line divides good from bad."""

LINE = 0.5
"""A cause is named when it explains more than this share of what is seen, by the whole of an interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One number, with its interval over sequences where it has one.

    low, high: None for a count or another number without an interval. level: nominal coverage of the interval.
    """

    name: str
    value: float
    low: float | None = None
    high: float | None = None
    level: float | None = None
    unit: str = ""

    def __str__(self) -> str:
        unit = f" {self.unit}" if self.unit else ""
        if self.low is None or self.high is None:
            return f"{self.name} {_digits(self.value)}{unit}"
        if math.isinf(self.low) and math.isinf(self.high):
            return f"{self.name} {_digits(self.value)}{unit} [no bounds]"
        return f"{self.name} {_digits(self.value)}{unit} [{_digits(self.low)}, {_digits(self.high)}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One cause and what the data say of it.

    reason: one sentence. advice: what to set or do; empty where there is nothing to do. alternatives: causes that the
    data cannot tell from this one. tells_apart: which datum would.
    """

    tier: Tier
    name: str
    verdict: Verdict
    reason: str
    evidence: tuple[Evidence, ...] = ()
    advice: str = ""
    alternatives: tuple[str, ...] = ()
    tells_apart: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """All findings, tier by tier.

    tokens: scored tokens that tiers 1 and 2 judge; stale: those left out because other weights sampled them; unsaid:
    those left out because the log says of others, and not of them, that the trainer's weights did.
    sequences: with at least one token judged. declared: sampling parameters as the log states them. next: what to do,
    in order.
    """

    sequences: int
    tokens: int
    stale: int
    unsaid: int
    declared: tuple[str, ...]
    findings: tuple[Finding, ...]
    next: tuple[str, ...]

    def find(self, name: str) -> Finding:
        """The finding of this name. Raises KeyError where there is none."""
        for finding in self.findings:
            if finding.name == name:
                return finding
        raise KeyError(name)

    def names(self, verdict: Verdict, tier: Tier | None = None) -> tuple[str, ...]:
        """The names of all findings with this verdict, of one tier or of all."""
        return tuple(f.name for f in self.findings if f.verdict == verdict and tier in {None, f.tier})

    def to_json(self) -> dict[str, Any]:
        """Plain data; a number that is not finite becomes a string, since JSON has none."""
        data: dict[str, Any] = plain(self)
        return data


def _digits(value: float) -> str:
    """Three digits, more near 1, where ratios and correlations lie."""
    whole = math.isfinite(value) and value == round(value) and abs(value) < 1e9
    if whole:
        return f"{value:.0f}"
    return f"{value:.5f}" if 0.9 < value < 1.1 else f"{value:.3g}"
