"""A diagnosis as data: findings with their verdicts, evidence in numbers, and advice."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

Tier = Literal["staleness", "semantics", "inference path", "objective"]
TIERS: tuple[Tier, ...] = ("staleness", "semantics", "inference path", "objective")
FindingVerdict = Literal["named", "ruled out", "undecided", "not tested", "described"]
"""described: numbers are given, and no threshold divides good from bad."""

LINE = 0.5
"""A cause is named if it explains more than this fraction of what is seen, by its whole interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One number, with an interval over sequences if it has one.

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
        low, high = ("no bound" if math.isinf(bound) else _digits(bound) for bound in (self.low, self.high))
        return f"{self.name} {_digits(self.value)}{unit} [{low}, {high}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One possible cause, and what the data say about it.

    reason: one sentence. advice: what to set or do, "" for nothing. alternatives: causes that the data can't tell from
    this one. tells_apart: which datum would.
    """

    tier: Tier
    name: str
    verdict: FindingVerdict
    reason: str
    evidence: tuple[Evidence, ...] = ()
    advice: str = ""
    alternatives: tuple[str, ...] = ()
    tells_apart: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """All findings, by tier.

    sequences, tokens: number of sequences with a judged token, and of scored tokens that tiers 1 and 2 judge. stale:
    tokens left out because other weights sampled them. unsaid: tokens left out because the log does not say which
    weights sampled them, while it does of others. declared: sampling parameters as the log states them. next: what to
    do, in order.
    """

    sequences: int
    tokens: int
    stale: int
    unsaid: int
    declared: tuple[str, ...]
    findings: tuple[Finding, ...]
    next: tuple[str, ...]

    def find(self, name: str) -> Finding:
        """The finding of this name. Raises KeyError if there is none."""
        for finding in self.findings:
            if finding.name == name:
                return finding
        raise KeyError(name)

    def names(self, verdict: FindingVerdict, tier: Tier | None = None) -> tuple[str, ...]:
        """The names of all findings with this verdict, of one tier or of all."""
        return tuple(f.name for f in self.findings if f.verdict == verdict and tier in {None, f.tier})


def judged(
    tier: Tier,
    name: str,
    verdict: FindingVerdict,
    reasons: Mapping[FindingVerdict, str],
    evidence: tuple[Evidence, ...] = (),
    *,
    advice: str = "",
    alternatives: tuple[str, ...] = (),
    tells_apart: str = "",
) -> Finding:
    """A finding with the reason that belongs to its verdict.

    advice, alternatives, tells_apart: they are said only if the cause is named. Raises KeyError for a verdict without a
    reason.
    """
    finding = Finding(tier=tier, name=name, verdict=verdict, reason=reasons[verdict], evidence=evidence)
    if verdict != "named":
        return finding
    return replace(finding, advice=advice, alternatives=alternatives, tells_apart=tells_apart)


def _digits(value: float) -> str:
    """Three digits; more for values near 1, as ratios and correlations are."""
    whole = math.isfinite(value) and value == round(value) and abs(value) < 1e9
    if whole:
        return f"{value:.0f}"
    return f"{value:.5f}" if 0.9 < value < 1.1 else f"{value:.3g}"
