"""Sentences and a table about the draws of sums in order of arrival."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from moeparity.bisection.data import ReportData
from moeparity.output.blocks import Group, bullets, group
from moeparity.output.words import quantity


def arrival_reading(candidate: Sequence[float], reference: Sequence[float], metric: str) -> list[str]:
    """What the draws of each side mean, in sentences; each is a value of the gate's metric, and a list may be empty."""
    sentences = []
    if candidate:
        low, high = min(candidate), max(candidate)
        sentences.append(
            f"The candidate adds in order of arrival: over {quantity(len(candidate), 'draw')} {metric} lies between "
            f"{low:.3g} and {high:.3g}. No single draw is its value."
        )
    if reference:
        furthest = max(reference)
        sentences.append(
            f"The reference adds in order of arrival: {quantity(len(reference), 'further draw')} of it "
            f"{'differs' if len(reference) == 1 else 'differ'} by up to {metric} {furthest:.3g} from the draw that the "
            "candidate is compared with."
        )
    return sentences


def show(report: ReportData) -> Iterator[Group]:
    """The report's group about order of arrival: how far the draws lie apart."""
    if report.arrival is not None:
        yield group("Order of arrival", bullets(report.arrival.reading))
