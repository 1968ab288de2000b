"""What is computed together, and whether that matters, in sentences and as a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from moeparity.bisection.data import ReportData
from moeparity.bisection.schedule.data import Steps
from moeparity.errors import counted
from moeparity.output.blocks import Group, bullets, group
from moeparity.output.words import enumerated

CANNOT_MATTER = "The schedule can't matter"


def schedule_reading(
    reference: Mapping[str, int], candidate: Mapping[str, int], *, differs: bool, mixing: Sequence[str] = ()
) -> list[str]:
    """Which ops of each side depend on which tokens are computed together, in sentences.

    differs: whether the sides' schedules differ. mixing: the sides in which sequences of a pack can see each other.
    """
    mixed = [_mixed(name) for name in mixing]
    if mixed and not reference and not candidate:
        return mixed
    if not reference and not candidate:
        after = ", although the schedules differ" if differs else ""
        return [f"{CANNOT_MATTER} here{after}: no op of either side depends on which tokens are computed together."]
    if reference == candidate:
        return [*mixed, f"On both sides {_clause(reference)}."]
    sides = (("reference", reference), ("candidate", candidate))
    return mixed + [
        f"In the {name} {_clause(ops)}." if ops else f"{CANNOT_MATTER} in the {name}: none of its ops depends on it."
        for name, ops in sides
        if ops or name not in mixing
    ]


def steps_reading(side: str, steps: Sequence[Steps]) -> str:
    """How many steps of how many rows a side makes, phase by phase."""
    phases = [
        f"{counted(phase.steps, 'step')} of {phase.phase} with {_rows(phase.least_rows, phase.most_rows)}"
        + " each" * (phase.steps > 1)
        + _of_head(phase)
        for phase in steps
    ]
    return f"The {side} makes {enumerated(phases)}."


def _of_head(phase: Steps) -> str:
    if (phase.least_head_rows, phase.most_head_rows) == (phase.least_rows, phase.most_rows):
        return ""
    return f" ({_rows(phase.least_head_rows, phase.most_head_rows)} at the head)"


def _rows(least: int, most: int) -> str:
    return counted(most, "row") if least == most else f"{least:,} to {most:,} rows"


def _mixed(side: str) -> str:
    return (
        f"In the {side} the sequences of a pack are not kept apart (no mask, or positions that go on from one to the "
        "next): what is computed for one depends on which others share its pack, not on the order of sums alone."
    )


def _clause(ops: Mapping[str, int]) -> str:
    verb = "depends" if len(ops) == 1 else "depend"
    return f"{enumerated(list(ops))} {verb} on which tokens are computed together"


def show(report: ReportData) -> Iterator[Group]:
    """Which ops depend on which tokens are computed together."""
    if report.schedule is not None:
        yield group("Schedule", bullets(report.schedule.reading))
