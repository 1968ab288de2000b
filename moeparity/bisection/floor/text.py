"""The floor for the terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType

from moeparity.bisection.floor.report import Floor
from moeparity.bisection.report import Report
from moeparity.bisection.sections import Shown
from moeparity.metrics.gating import gated_name
from moeparity.output.tables import bullets, plain_table
from moeparity.output.words import percent


def _section(report: Report) -> Shown:
    if report.floor is not None:
        yield "Floor", floor_table(report.floor, gated_name(report.verdict.metric))


def floor_table(floor: Floor, metric: str) -> RenderableType:
    """One row per trial, and what they mean."""
    table = plain_table(metric, "flips", names="the reference against itself, with", names_first=True)
    for trial in floor.trials:
        value = "bit-identical" if trial.bit_identical else f"{trial.value.estimate:.2e}"
        flips = "" if trial.bit_identical or trial.flipped_routes is None else percent(trial.flipped_routes)
        table.add_row(trial.name, value, flips)
    return Group(table, bullets(floor.reading)) if floor.trials else Group(bullets(floor.reading))


SHOWN = {"floor": _section}
