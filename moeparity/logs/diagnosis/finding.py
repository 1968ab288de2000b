"""What a diagnosis says, as data and as text: findings with their verdicts, evidence in numbers, and what to do."""

from __future__ import annotations

import math
from dataclasses import dataclass
from textwrap import wrap
from typing import Any, Literal

from moeparity.errors import counted
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
        low, high = ("no bound" if math.isinf(bound) else _digits(bound) for bound in (self.low, self.high))
        return f"{self.name} {_digits(self.value)}{unit} [{low}, {high}]"


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


# Fits a terminal of 80 columns, where a longer line would be cut in two without its indent.
_WIDTH = 79
_FULL: tuple[Verdict, ...] = ("named", "undecided", "described")


def lines(diagnosis: Diagnosis) -> list[str]:
    """The tiers in order, causes named and open ones in full, the others by name; then what to do next."""
    extent = f"{counted(diagnosis.tokens, 'token')} of {counted(diagnosis.sequences, 'sequence')}"
    stale = f", {diagnosis.stale:,} stale ones left out" if diagnosis.stale else ""
    unsaid = f", {diagnosis.unsaid:,} of unknown weights left out" if diagnosis.unsaid else ""
    text = [f"Diagnosis of {extent}{stale}{unsaid}"]
    text += [f"  the log says of the sampler: {parameters}" for parameters in diagnosis.declared]
    for tier in TIERS:
        findings = [finding for finding in diagnosis.findings if finding.tier == tier]
        if findings:
            text += [f"  {tier}", *_tier(findings)]
    text.append("  next")
    for number, step in enumerate(diagnosis.next, 1):
        text += _paragraph(f"{number}. {step}", 4, hanging=3)
    return text


def _tier(findings: list[Finding]) -> list[str]:
    text = []
    for finding in findings:
        if finding.verdict in _FULL:
            text += _whole(finding)
    for verdict in ("ruled out", "not tested"):
        names = [finding.name for finding in findings if finding.verdict == verdict]
        if names:
            text += _paragraph(f"{verdict}: {', '.join(names)}", 4)
    return text


def _whole(finding: Finding) -> list[str]:
    verdict = {"named": "NAMED", "undecided": "open", "described": "shown"}[finding.verdict]
    text = _paragraph(f"{verdict:<6} {finding.name}: {finding.reason}", 4, hanging=7)
    text += _paragraph("; ".join(str(evidence) for evidence in finding.evidence), 11) if finding.evidence else []
    if finding.alternatives:
        text += _paragraph(f"indistinguishable here: {'; '.join(finding.alternatives)}", 11)
    if finding.tells_apart:
        text += _paragraph(f"what would tell: {finding.tells_apart}", 11)
    return text


def _paragraph(text: str, indent: int, *, hanging: int = 0) -> list[str]:
    first = " " * indent
    return wrap(text, _WIDTH, initial_indent=first, subsequent_indent=first + " " * hanging, break_on_hyphens=False)
