"""The schedule in words."""

from __future__ import annotations

from collections.abc import Mapping

from moeparity.output.words import enumerated

CANNOT_MATTER = "The schedule can't matter"


HANDS_ON = (
    "A pack without its mask, or whose positions run on, hands each sequence something of its neighbours: the schedule "
    "makes another model of it, whatever its ops go by."
)


def schedule_reading(
    reference: Mapping[str, int], candidate: Mapping[str, int], *, differs: bool, hands_on: bool = False
) -> list[str]:
    """Which ops see which tokens are computed together, of each side; `differs`: whether the micro-batches do.

    `hands_on`: whether, in the packs of a side, sequences are given something of their neighbours.
    """
    if hands_on:
        seen = [f"In the {name} {_seen(ops)}." for name, ops in _by_side(reference, candidate) if ops]
        return [HANDS_ON, *seen]
    if not reference and not candidate:
        after = ", although the micro-batches differ" if differs else ""
        return [f"{CANNOT_MATTER} here{after}: no op of either side goes by which tokens are computed together."]
    if reference == candidate:
        return [f"On both sides {_seen(reference)}."]
    return [
        f"In the {name} {_seen(ops)}." if ops else f"{CANNOT_MATTER} in the {name}: none of its ops goes by it."
        for name, ops in _by_side(reference, candidate)
    ]


def _by_side(reference: Mapping[str, int], candidate: Mapping[str, int]) -> list[tuple[str, Mapping[str, int]]]:
    return [("reference", reference), ("candidate", candidate)]


def _seen(ops: Mapping[str, int]) -> str:
    verb = "goes" if len(ops) == 1 else "go"
    return f"{enumerated(list(ops))} {verb} by which tokens are computed together"
