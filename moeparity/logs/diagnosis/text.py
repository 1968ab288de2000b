"""A diagnosis as plain text."""

from __future__ import annotations

from textwrap import wrap

from moeparity.errors import counted
from moeparity.logs.diagnosis.finding import TIERS, Diagnosis, Finding, Verdict

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
