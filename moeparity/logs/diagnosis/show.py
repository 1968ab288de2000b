"""A diagnosis as shown, with named and undecided causes first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from moeparity.errors import counted
from moeparity.logs.diagnosis.finding import TIERS, Diagnosis, Finding, FindingVerdict
from moeparity.output.blocks import Block, Cell, Group, Lines, Styled, group, lines, names
from moeparity.output.terminal import in_lines

_FULL: dict[FindingVerdict, Styled] = {
    "named": Styled("NAMED", "bold red"),
    "undecided": Styled("open"),
    "described": Styled("shown"),
}
"""Verdicts whose findings are printed in full; of others only the names are."""


def diagnosed(diagnosis: Diagnosis) -> Group:
    """The findings by tier: named and undecided causes in full, others by name; then what to do next."""
    extent = f"{counted(diagnosis.tokens, 'token')} of {counted(diagnosis.sequences, 'sequence')}"
    stale = f", {diagnosis.stale:,} stale ones left out" if diagnosis.stale else ""
    unsaid = f", {diagnosis.unsaid:,} sampled from unknown weights left out" if diagnosis.unsaid else ""
    declared = [f"the log says of the sampler: {parameters}" for parameters in diagnosis.declared]
    tiers = [(tier, [f for f in diagnosis.findings if f.tier == tier]) for tier in TIERS]
    return group(
        f"Diagnosis of {extent}{stale}{unsaid}",
        lines(*declared) if declared else None,
        *(group(tier, *_tier(findings)) for tier, findings in tiers if findings),
        group("next", Lines(diagnosis.next, "numbered")),
    )


def diagnosis_lines(diagnosis: Diagnosis) -> list[str]:
    """The diagnosis as lines of text, for a terminal of 80 columns."""
    return in_lines([diagnosed(diagnosis)], width=79)


def _tier(findings: Sequence[Finding]) -> Iterator[Block]:
    rows = [row for finding in findings if finding.verdict in _FULL for row in _finding(finding)]
    if rows:
        yield names(rows)
    by_name = [(word, [f.name for f in findings if f.verdict == word]) for word in ("ruled out", "not tested")]
    if any(of for _, of in by_name):
        yield lines(*(f"{word}: {', '.join(of)}" for word, of in by_name if of))


def _finding(finding: Finding) -> Iterator[tuple[Cell, ...]]:
    yield _FULL[finding.verdict], f"{finding.name}: {finding.reason}"
    if finding.evidence:
        yield "", Styled("; ".join(map(str, finding.evidence)), "dim")
    if finding.alternatives:
        yield "", f"indistinguishable here: {'; '.join(finding.alternatives)}"
    if finding.tells_apart:
        yield "", f"what would tell: {finding.tells_apart}"
