"""Compares what a recipe or a log expects with what was found."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from moeparity.metrics.verdict import MINIMUM_SEQUENCES, Verdict
from moeparity.output.blocks import Styled, Table, names
from moeparity.output.words import between
from moeparity.plan.spec.expect import Bounds

Status = Literal["ok", "fail", "inconclusive", "not judged", "updated"]
Outcome = tuple[Status, str]
"""The status of an expectation, and what was found."""

PRECEDENCE = (70, 2, 1, 3, 0)
"""Of several exit codes, the first of these that is present counts."""

_LOOKS: Mapping[Status, tuple[str, str, int]] = {
    "ok": ("ok", "bold green", 0),
    "fail": ("FAIL", "bold red", 1),
    "inconclusive": ("inconclusive", "bold yellow", 3),
    "not judged": ("not judged", "bold yellow", 0),
    "updated": ("updated", "bold yellow", 0),
}
"""By status: the word before a finding, the style of that word, and the exit code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One expectation compared with a report: met (`ok`), not met (`fail`) or open (`inconclusive`).

    For a baseline also `not judged` (can't be judged on this machine) and `updated` (written anew).
    """

    expectation: str
    status: Status
    found: str


def in_rows(findings: Iterable[Finding]) -> Table:
    """A row for each finding: whether it is met, what was expected, and what was found."""
    looks = ((finding, *_LOOKS[finding.status]) for finding in findings)
    return names((Styled(word, style), finding.expectation, finding.found) for finding, word, style, _ in looks)


def findings_code(findings: Iterable[Finding]) -> int:
    """The exit code of expectations: 0 if all are met or there is none, 1 if one is not met, 3 if one is open."""
    return combined((0, *(_LOOKS[finding.status][2] for finding in findings)))


def combined(codes: Iterable[int]) -> int:
    """The exit code of several runs: the first of 70, 2, 1, 3, 0 that is present."""
    return min(codes, key=PRECEDENCE.index)


def agrees(expectation: str, verdict: Verdict) -> Outcome:
    """Whether the verdict is the expected one; open if it is inconclusive and something else is expected."""
    actual = verdict.status
    if actual == expectation:
        status: Status = "ok"
    else:
        status = "inconclusive" if actual == "inconclusive" else "fail"
    return status, f"{actual}: {verdict.reason}"


def lies(bounds: Bounds, number: float) -> Outcome:
    """Whether a number lies within bounds."""
    # Comparisons with NaN are false, so a value that was not measured meets no bound.
    met = (bounds.below is None or number < bounds.below) and (bounds.above is None or number > bounds.above)
    return "ok" if met else "fail", f"{number:.6g}"


def keeps(bounds: Bounds, verdict: Verdict, sequences: int) -> Outcome:
    """Whether the interval of the gate's metric lies within the bounds; open if it contains a bound."""
    value, below, above = verdict.value, bounds.below, bounds.above
    text = f"{verdict.metric} in {between(value.low, value.high, '.6g')} per {verdict.reduce}"
    if not math.isfinite(value.estimate):
        return "fail", f"{verdict.metric} is {value.estimate}"
    if (below is not None and value.low >= below) or (above is not None and value.high <= above):
        return "fail", text
    if (below is not None and value.high >= below) or (above is not None and value.low <= above):
        return "inconclusive", text
    # With so few sequences a verdict passes only if all bits are equal.
    if below is not None and sequences < MINIMUM_SEQUENCES and verdict.status != "pass":
        return "inconclusive", f"{text}, from {sequences} sequences; {MINIMUM_SEQUENCES} are needed"
    return "ok", text
