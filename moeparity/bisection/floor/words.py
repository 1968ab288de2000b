"""The floor in words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from moeparity.output.words import enumerated

AT_THE_FLOOR = 2.0
"""Up to this many times the floor a value is said to be at it."""

NOT_CONTAINED = "decode schedules and the inner orders of torch's own kernels"
"""What could move the reference too, and is not tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FloorValue:
    """The gate's metric of one trial against the reference; `bit_identical`: the logits of all scored tokens are."""

    name: str
    value: float
    bit_identical: bool


def floor_reading(values: Sequence[FloorValue], *, metric: str, value: float, gate: float) -> list[str]:
    """The floor in sentences, beside the candidate's `value` and the `gate`, all in the units of the metric."""
    if not values:
        return ["There is no floor: one sequence, and no summation order to draw."]
    contains = f"The floor does not contain {NOT_CONTAINED}."
    if all(trial.bit_identical for trial in values):
        names = enumerated([trial.name for trial in values])
        return [f"Floor: bit-identical. The reference gives the same bits under {names}.", contains]
    deviations = [trial for trial in values if not trial.bit_identical]
    largest = max(deviations, key=lambda trial: (math.isnan(trial.value), trial.value))
    if not largest.value > 0:
        return [f"Floor: {metric} {largest.value:g}, although bits differ under {largest.name}.", contains]
    sentences = [f"{metric} is {value / largest.value:.2g} x the floor, {largest.value:.3g} ({largest.name})."]
    if value <= largest.value:
        sentences.append("The candidate differs from the reference no more than the reference differs from itself.")
    elif value <= AT_THE_FLOOR * largest.value:
        sentences.append("The candidate is at the floor: the reference differs from itself about as much.")
    if gate < largest.value:
        sentences.append(
            f"The gate {gate:g} lies below the floor: the reference does not pass this gate against itself."
        )
    return [*sentences, contains]
