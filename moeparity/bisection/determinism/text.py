"""Functions that are not deterministic, for the terminal."""

from __future__ import annotations

from moeparity.bisection.determinism.words import determinism_reading
from moeparity.bisection.report import Report
from moeparity.bisection.sections import Shown
from moeparity.output.tables import Words


def _section(report: Report) -> Shown:
    for sentence in determinism_reading(report.not_deterministic):
        yield "", Words(f"warning: {sentence}", style="yellow")


SHOWN = {"not_deterministic": _section}
