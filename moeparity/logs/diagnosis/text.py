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
    judged = f"{counted(diagnosis.tokens, 'token')} of {counted(diagnosis.sequences, 'sequence')}"
    stale = f", {diagnosis.stale:,} stale ones left out" if diagnosis.stale else ""
    unsaid = f", {diagnosis.unsaid:,} of unknown weights left out" if diagnosis.unsaid else ""
    found = [f"Diagnosis of {judged}{stale}{unsaid}"]
    found += [f"  the log says of the sampler: {each}" for each in diagnosis.declared]
    for tier in TIERS:
        findings = [finding for finding in diagnosis.findings if finding.tier == tier]
        if findings:
            found += [f"  {tier}", *_tier(findings)]
    found.append("  next")
    for number, step in enumerate(diagnosis.next, 1):
        found += _wrapped(f"{number}. {step}", 4, hanging=3)
    return found


def _tier(findings: list[Finding]) -> list[str]:
    found = []
    for finding in findings:
        if finding.verdict in _FULL:
            found += _whole(finding)
    for verdict in ("ruled out", "not tested"):
        names = [finding.name for finding in findings if finding.verdict == verdict]
        if names:
            found += _wrapped(f"{verdict}: {', '.join(names)}", 4)
    return found


def _whole(finding: Finding) -> list[str]:
    verdict = {"named": "NAMED", "undecided": "open", "described": "shown"}[finding.verdict]
    found = _wrapped(f"{verdict:<6} {finding.name}: {finding.reason}", 4, hanging=7)
    found += _wrapped("; ".join(str(each) for each in finding.evidence), 11) if finding.evidence else []
    if finding.alternatives:
        found += _wrapped(f"indistinguishable here: {'; '.join(finding.alternatives)}", 11)
    if finding.tells_apart:
        found += _wrapped(f"what would tell: {finding.tells_apart}", 11)
    return found


def _wrapped(text: str, indent: int, *, hanging: int = 0) -> list[str]:
    first = " " * indent
    return wrap(text, _WIDTH, initial_indent=first, subsequent_indent=first + " " * hanging, break_on_hyphens=False)
