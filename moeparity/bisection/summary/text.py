"""The seven lines for the terminal."""

from __future__ import annotations

from rich.console import RenderableType

from moeparity.bisection.report import Report
from moeparity.bisection.sections import Shown
from moeparity.output.status import status_line


def seven_lines(report: Report) -> RenderableType:
    """The summary, each line behind the word that says what it is."""
    summary = report.summary
    table = status_line(report.verdict.status, summary.verdict)
    for word, line in (
        ("record", summary.record),
        ("starts", summary.starts),
        ("blame", summary.blame),
        ("to set", summary.to_set),
        ("floor", summary.floor),
        ("sure", summary.sure),
    ):
        table.add_row(word, line)
    return table


def _section(report: Report) -> Shown:
    yield "", seven_lines(report)


SHOWN = {"summary": _section}
