"""The nearest known choices for the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group
from rich.text import Text

from moeparity.bisection.nearest.report import Nearest
from moeparity.bisection.report import Report
from moeparity.bisection.sections import Shown
from moeparity.output.words import percent


def _section(report: Report) -> Shown:
    if report.nearest:
        yield "Nearest choices", Group(*(Text(line) for answer in report.nearest for line in nearest_lines(answer)))


def nearest_lines(answer: Nearest) -> Iterator[str]:
    """The answer in a line or two of text."""
    if answer.in_vocabulary:
        yield f"nearest to {answer.call} at {answer.node}: {', or '.join(map(str, answer.found))} (all bits equal)"
        return
    yield f"{answer.call} at {answer.node}: not in the vocabulary; none of {answer.tried} choices gives its bits"
    if answer.found and answer.found[0].equal > answer.as_it_is:
        best = answer.found[0]
        yield f"  nearest: {best}, {percent(best.equal)} of elements equal ({percent(answer.as_it_is)} without it)"


SHOWN = {"nearest": _section}
