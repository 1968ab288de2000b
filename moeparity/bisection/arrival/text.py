"""Draws in order of arrival for the terminal."""

from __future__ import annotations

from moeparity.bisection.report import Report
from moeparity.bisection.sections import Shown
from moeparity.output.tables import bullets


def _section(report: Report) -> Shown:
    if report.arrival is not None:
        yield "Order of arrival", bullets(report.arrival.reading)


SHOWN = {"arrival": _section}
