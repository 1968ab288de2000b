"""The schedule in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from moeparity.bisection.schedule.report import Steps
from moeparity.output.words import enumerated

CANNOT_MATTER = "The schedule can't matter"


def schedule_reading(
    reference: Mapping[str, int], candidate: Mapping[str, int], *, differs: bool, mixing: Sequence[str] = ()
) -> list[str]:
    """Which ops see which tokens are computed together, of each side; `differs`: whether the schedules do.

    `mixing`: the sides in which sequences of a pack are given something of their neighbours.
    """
    mixed = [_mixed(name) for name in mixing]
    if mixed and not reference and not candidate:
        return mixed
    if not reference and not candidate:
        after = ", although the schedules differ" if differs else ""
        return [f"{CANNOT_MATTER} here{after}: no op of either side goes by which tokens are computed together."]
    if reference == candidate:
        return [*mixed, f"On both sides {_clause(reference)}."]
    sides = (("reference", reference), ("candidate", candidate))
    return mixed + [
        f"In the {name} {_clause(ops)}." if ops else f"{CANNOT_MATTER} in the {name}: none of its ops goes by it."
        for name, ops in sides
        if ops or name not in mixing
    ]


def steps_reading(side: str, steps: Sequence[Steps]) -> str:
    """How many steps of how many rows a side makes, phase by phase."""
    phases = [
        f"{_count(phase.steps, 'step')} of {phase.phase} with {_rows(phase.least_rows, phase.most_rows)}"
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
    return _count(most, "row") if least == most else f"{least:,} to {most:,} rows"


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"


def _mixed(side: str) -> str:
    return (
        f"In the {side} a pack hands its sequences something of their neighbours (no mask, or positions that run on): "
        "what is computed goes by who shares a pack, whatever the order of sums."
    )


def _clause(ops: Mapping[str, int]) -> str:
    verb = "goes" if len(ops) == 1 else "go"
    return f"{enumerated(list(ops))} {verb} by which tokens are computed together"
