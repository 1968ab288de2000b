"""Warnings about users' functions that are not deterministic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from moeparity.bisection.data import ReportData
from moeparity.bisection.determinism.data import NotDeterministic
from moeparity.output.blocks import Lines, warnings
from moeparity.output.words import quantity
from moeparity.plan.address import pattern


def determinism_reading(entries: Sequence[NotDeterministic]) -> Iterator[str]:
    """A sentence for each function of a side, and what follows from it."""
    by_function: dict[tuple[str, str], list[NotDeterministic]] = {}
    for entry in entries:
        by_function.setdefault((entry.side, entry.call), []).append(entry)
    for (side, call), group in by_function.items():
        values, of, calls = (sum(column) for column in zip(*((e.values, e.of, e.calls) for e in group), strict=True))
        yield (
            f"{call} at {pattern(entry.node for entry in group)} ({side}) is not deterministic: in "
            f"{quantity(calls, 'further call')} on the same input {values} of {of} values had other bits. "
            "Every result below rests on one call of each; another run may give other results."
        )


def show(report: ReportData) -> Iterator[Lines]:
    """A warning for each function."""
    for sentence in determinism_reading(report.not_deterministic):
        yield from warnings([sentence])
