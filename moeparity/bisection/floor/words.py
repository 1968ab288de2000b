"""The floor in words."""

from __future__ import annotations

import math
from collections.abc import Sequence

from moeparity.bisection.floor.report import FloorTrial
from moeparity.output.words import enumerated

AT_THE_FLOOR = 2.0
"""Up to this many times the floor a value is said to be at it."""

NOT_CONTAINED = "schedules of other engines and the inner orders of torch's own kernels"
"""What could move the reference too, and is not tried."""


def floor_reading(trials: Sequence[FloorTrial], *, metric: str, value: float, gate: float) -> list[str]:
    """The floor in sentences, beside the candidate's `value` and the `gate`, all in the units of the metric."""
    if not trials:
        return ["There is no floor: one sequence, and no summation order to draw."]
    contains = f"The floor does not contain {NOT_CONTAINED}."
    if all(trial.bit_identical for trial in trials):
        names = enumerated([trial.name for trial in trials])
        return [f"Floor: bit-identical. The reference gives the same bits under {names}.", contains]
    deviations = [trial for trial in trials if not trial.bit_identical]
    largest = max(deviations, key=lambda trial: (math.isnan(trial.value.estimate), trial.value.estimate))
    floor = largest.value.estimate
    if not floor > 0:
        return [f"Floor: {metric} {floor:g}, although bits differ under {largest.name}.", contains]
    sentences = [f"{metric} is {value / floor:.2g} x the floor, {floor:.3g} ({largest.name})."]
    if value <= floor:
        sentences.append("The candidate differs from the reference no more than the reference differs from itself.")
    elif value <= AT_THE_FLOOR * floor:
        sentences.append("The candidate is at the floor: the reference differs from itself about as much.")
    if gate < floor:
        sentences.append(
            f"The gate {gate:g} lies below the floor: the reference does not pass this gate against itself."
        )
    return [*sentences, contains]
