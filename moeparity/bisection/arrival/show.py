"""Sentences and a table about the draws of sums in order of arrival."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from moeparity.bisection.data import ReportData
from moeparity.output.blocks import Group, bullets, group
from moeparity.output.words import quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawValue:
    """The gate's metric of one draw, and the verdict on it; None for a draw of the reference."""

    value: float
    status: str | None


def arrival_reading(candidate: Sequence[DrawValue], reference: Sequence[DrawValue], metric: str) -> list[str]:
    """What the draws mean, in sentences. `candidate` begins with the recipe's own draw; either list may be empty."""
    sentences = []
    if candidate:
        low, high = min(d.value for d in candidate), max(d.value for d in candidate)
        sentences.append(
            f"The candidate adds in order of arrival: over {quantity(len(candidate), 'draw')} {metric} lies between "
            f"{low:.3g} and {high:.3g}. No single draw is its value."
        )
    if reference:
        furthest = max(d.value for d in reference)
        sentences.append(
            f"The reference adds in order of arrival: {quantity(len(reference), 'further draw')} of it "
            f"{'differs' if len(reference) == 1 else 'differ'} by up to {metric} {furthest:.3g} from the draw that the "
            "candidate is compared with."
        )
    return sentences


def agreed(candidate: Sequence[DrawValue]) -> bool:
    """Whether the verdict is the same on every draw of the candidate."""
    return len({draw.status for draw in candidate}) <= 1


def show(report: ReportData) -> Iterator[Group]:
    """The report's group about order of arrival: how far the draws lie apart."""
    if report.arrival is not None:
        yield group("Order of arrival", bullets(report.arrival.reading))
