"""The floor in sentences, and a table with a row for each trial."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from moeparity.bisection.data import ReportData
from moeparity.bisection.floor.data import Floor, FloorTrial
from moeparity.metrics.gating import gated_name
from moeparity.output.blocks import Group, Table, bullets, columns, group, table
from moeparity.output.words import enumerated, percent

AT_THE_FLOOR = 2.0
"""A value of up to this many times the floor is said to be at the floor."""

NOT_TRIED = "Not tried for the floor: schedules of other engines, and other orders inside torch's own kernels."
"""What could also change the bits of the reference, and was not tried."""


def floor_reading(trials: Sequence[FloorTrial], *, metric: str, value: float, gate: float) -> list[str]:
    """The floor in sentences, beside the candidate's `value` and the `gate`, all in the units of the metric."""
    if not trials:
        return ["There is no floor: one sequence, and no summation order to draw."]
    if all(trial.bit_identical for trial in trials):
        names = enumerated([trial.name for trial in trials])
        return [f"Floor: bit-identical. The reference gives the same bits under {names}.", NOT_TRIED]
    deviations = [trial for trial in trials if not trial.bit_identical]
    largest = max(deviations, key=lambda trial: (math.isnan(trial.value.estimate), trial.value.estimate))
    floor = largest.value.estimate
    if not floor > 0:
        return [f"Floor: {metric} {floor:g}, although bits differ under {largest.name}.", NOT_TRIED]
    sentences = [f"{metric} is {value / floor:.2g} x the floor, {floor:.3g} ({largest.name})."]
    if value <= floor:
        sentences.append("The candidate differs from the reference no more than the reference differs from itself.")
    elif value <= AT_THE_FLOOR * floor:
        sentences.append("The candidate is at the floor: the reference differs from itself about as much.")
    if gate < floor:
        sentences.append(
            f"The gate {gate:g} lies below the floor: the reference does not pass this gate against itself."
        )
    return [*sentences, NOT_TRIED]


def show(report: ReportData) -> Iterator[Group]:
    """The group about the reference against itself."""
    floor = report.floor
    if floor is not None:
        trials = floor_table(floor, gated_name(report.verdict.metric)) if floor.trials else None
        yield group("Floor", trials, bullets(floor.reading))


def floor_table(floor: Floor, metric: str) -> Table:
    """A row for each trial."""
    return table(columns(metric, "flips", first="the reference against itself, with"), map(_row, floor.trials))


def _row(trial: FloorTrial) -> tuple[str, ...]:
    value = "bit-identical" if trial.bit_identical else f"{trial.value.estimate:.2e}"
    flips = "" if trial.bit_identical or trial.flipped_routes is None else percent(trial.flipped_routes)
    return trial.name, value, flips
