"""The seven lines for the terminal."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from moeparity.bisection.report import Report
from moeparity.bisection.sections import Shown
from moeparity.output.tables import COLOUR, plain_grid


def seven_lines(report: Report) -> RenderableType:
    """The summary, each line behind the word that says what it is."""
    table, summary = plain_grid(2), report.summary
    status = report.verdict.status
    table.add_row(Text(status.upper(), COLOUR[status]), summary.verdict)
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
