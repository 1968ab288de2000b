"""What was expected held against what was found: of a recipe or of a log."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from moeparity.metrics.verdict import MINIMUM_SEQUENCES, Verdict
from moeparity.output.words import between
from moeparity.plan.spec.expect import Bounds

Status = Literal["ok", "fail", "inconclusive", "not judged", "updated"]
Outcome = tuple[Status, str]
"""What became of an expectation, and what was found."""

PRECEDENCE = (70, 2, 1, 3, 0)
"""Exit codes: of several, the first of these that is present."""

_CODES: dict[Status, int] = {"ok": 0, "fail": 1, "inconclusive": 3, "not judged": 0, "updated": 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One expectation held against a report: met (`ok`), not met (`fail`), or open (`inconclusive`).

    Of a baseline also what cannot be judged on this machine (`not judged`), and what was written anew (`updated`).
    """

    expectation: str
    status: Status
    found: str


def findings_code(findings: Iterable[Finding]) -> int:
    """The exit code of expectations: 0 met, or none there; 1 some is not met, 3 some is open."""
    return combined((0, *(_CODES[finding.status] for finding in findings)))


def combined(codes: Iterable[int]) -> int:
    """The exit code of several: the first present of 70, 2, 1, 3, 0."""
    return min(codes, key=PRECEDENCE.index)


def agrees(expectation: str, verdict: Verdict) -> Outcome:
    """Whether the verdict is the expected one; open where it is inconclusive and should not be."""
    actual = verdict.status
    if actual == expectation:
        status: Status = "ok"
    else:
        status = "inconclusive" if actual == "inconclusive" else "fail"
    return status, f"{actual}: {verdict.reason}"


def lies(bounds: Bounds, number: float) -> Outcome:
    """Whether a number lies within bounds."""
    # Comparisons with NaN are false: what was not measured meets no bound.
    met = (bounds.below is None or number < bounds.below) and (bounds.above is None or number > bounds.above)
    return "ok" if met else "fail", f"{number:.6g}"


def keeps(bounds: Bounds, verdict: Verdict, sequences: int) -> Outcome:
    """Whether the interval of the gate's metric keeps its bounds; open where it holds one."""
    value, below, above = verdict.value, bounds.below, bounds.above
    text = f"{verdict.metric} in {between(value.low, value.high, '.6g')} per {verdict.reduce}"
    if not math.isfinite(value.estimate):
        return "fail", f"{verdict.metric} is {value.estimate}"
    if (below is not None and value.low >= below) or (above is not None and value.high <= above):
        return "fail", text
    if (below is not None and value.high >= below) or (above is not None and value.low <= above):
        return "inconclusive", text
    # With fewer sequences a verdict passes only where all bits are equal.
    if below is not None and sequences < MINIMUM_SEQUENCES and verdict.status != "pass":
        return "inconclusive", f"{text}, from {sequences} sequences; {MINIMUM_SEQUENCES} are needed"
    return "ok", text
