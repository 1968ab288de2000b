"""Draws of sums in order of arrival, in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawValue:
    """The gate's metric of one draw, and the verdict on it; None for a draw of the reference."""

    value: float
    status: str | None


def arrival_reading(candidate: Sequence[DrawValue], reference: Sequence[DrawValue], metric: str) -> list[str]:
    """What the draws mean, in sentences. `candidate` begins with the draw the recipe names; either may be empty."""
    sentences = []
    if candidate:
        low, high = min(d.value for d in candidate), max(d.value for d in candidate)
        sentences.append(
            f"The candidate adds in order of arrival: over {len(candidate)} draws {metric} lies between {low:.3g} and "
            f"{high:.3g}. No single draw is its value."
        )
    if reference:
        furthest = max(d.value for d in reference)
        sentences.append(
            f"The reference adds in order of arrival: {len(reference)} further draws lie up to {metric} {furthest:.3g} "
            "from the one it is compared in."
        )
    return sentences


def agreed(candidate: Sequence[DrawValue]) -> bool:
    """Whether the verdict is the same on every draw of the candidate."""
    return len({draw.status for draw in candidate}) <= 1
