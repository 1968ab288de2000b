"""The schedule in words."""

from __future__ import annotations

from collections.abc import Mapping

from moeparity.output.words import enumerated

CANNOT_MATTER = "The schedule can't matter"


def schedule_reading(reference: Mapping[str, int], candidate: Mapping[str, int], *, differs: bool) -> list[str]:
    """Which ops see which tokens are computed together, of each side; `differs`: whether the micro-batches do."""
    if not reference and not candidate:
        after = ", although the micro-batches differ" if differs else ""
        return [f"{CANNOT_MATTER} here{after}: no op of either side goes by which tokens are computed together."]
    if reference == candidate:
        return [f"On both sides {_seen(reference)}."]
    sides = (("reference", reference), ("candidate", candidate))
    return [
        f"In the {name} {_seen(ops)}." if ops else f"{CANNOT_MATTER} in the {name}: none of its ops goes by it."
        for name, ops in sides
    ]


def _seen(ops: Mapping[str, int]) -> str:
    verb = "goes" if len(ops) == 1 else "go"
    return f"{enumerated(list(ops))} {verb} by which tokens are computed together"
