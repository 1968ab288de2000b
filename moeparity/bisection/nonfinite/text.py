"""NaN and infinities for the terminal."""

from __future__ import annotations

from moeparity.bisection.report import Report
from moeparity.bisection.sections import Shown
from moeparity.output.tables import bullets


def _section(report: Report) -> Shown:
    if report.nonfinite is not None:
        yield "NaN and infinities", bullets(report.nonfinite.reading)


SHOWN = {"nonfinite": _section}
