"""What is degenerate, for the terminal."""

from __future__ import annotations

from rich.console import Group

from moeparity.bisection.degeneracy.words import reasons, repeated
from moeparity.bisection.report import Report
from moeparity.bisection.sections import Shown
from moeparity.output.tables import Words


def _degeneracy(report: Report) -> Shown:
    again = repeated(report.degeneracy)
    lines = [*([again] if again else []), *(f"Degenerate: {reason}." for reason in reasons(report.degeneracy))]
    if lines:
        yield "", Group(*(Words(f"warning: {line}", style="yellow") for line in lines))


SHOWN = {"degeneracy": _degeneracy}
