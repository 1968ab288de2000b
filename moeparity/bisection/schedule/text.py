"""The schedule for the terminal."""

from __future__ import annotations

from moeparity.bisection.report import Report
from moeparity.bisection.sections import Shown
from moeparity.output.tables import bullets


def _section(report: Report) -> Shown:
    if report.schedule is not None:
        yield "Schedule", bullets(report.schedule.reading)


SHOWN = {"schedule": _section}
