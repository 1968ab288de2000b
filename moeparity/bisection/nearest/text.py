"""The nearest known choices for the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group
from rich.text import Text

from moeparity.bisection.nearest.report import Nearest
from moeparity.bisection.report import Report
from moeparity.bisection.sections import Shown


def _section(report: Report) -> Shown:
    if report.nearest:
        yield "Nearest choices", Group(*(Text(line) for answer in report.nearest for line in nearest_lines(answer)))


def nearest_lines(found: Nearest) -> Iterator[str]:
    """The answer in a line or two of text."""
    if found.in_vocabulary:
        yield f"nearest to {found.call} at {found.node}: {', or '.join(map(str, found.found))} (all bits equal)"
        return
    yield f"{found.call} at {found.node}: not in the vocabulary; none of {found.tried} choices gives its bits"
    if found.found and found.found[0].equal > found.as_it_is:
        best = found.found[0]
        yield f"  nearest: {best}, {best.equal:.2%} of elements equal ({found.as_it_is:.2%} without it)"


SHOWN = {"nearest": _section}
