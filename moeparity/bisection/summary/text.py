"""The seven lines for the terminal."""

from __future__ import annotations

from rich.console import RenderableType

from moeparity.bisection.report import Report
from moeparity.bisection.sections import Shown
from moeparity.output.status import status_line


def lines(report: Report) -> tuple[tuple[str, str], ...]:
    """The seven lines of the summary, each behind the word that says what it is."""
    summary = report.summary
    return (
        (report.verdict.status.upper(), summary.verdict),
        ("record", summary.record),
        ("starts", summary.starts),
        ("blame", summary.blame),
        ("to set", summary.to_set),
        ("floor", summary.floor),
        ("sure", summary.sure),
    )


def seven_lines(report: Report) -> RenderableType:
    """The summary as a table."""
    (_, verdict), *others = lines(report)
    table = status_line(report.verdict.status, verdict)
    for word, line in others:
        table.add_row(word, line)
    return table


def _section(report: Report) -> Shown:
    yield "", seven_lines(report)


SHOWN = {"summary": _section}
