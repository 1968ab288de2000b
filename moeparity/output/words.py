"""Names, counts and shares as every report writes them."""

from __future__ import annotations

from collections.abc import Sequence


def enumerated(names: Sequence[str]) -> str:
    """`a, b and c`."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def quantity(count: int, noun: str) -> str:
    """`1 node`, `3 nodes`, `2 passes`."""
    ending = "es" if noun.endswith(("s", "x")) else "s"
    return f"{count} {noun}{ending * (count != 1)}"


def percent(share: float) -> str:
    """`12.34%`."""
    return f"{share:.2%}"


def of_whole(value: float | None, whole: float) -> str:
    """A trial's KL and how much of the candidate's that is: `1.20e-04  37%`; the share only where there is a whole."""
    if value is None:
        return "cannot run"
    return f"{value:.2e} {value / whole:>4.0%}" if whole > 0 else f"{value:.2e}"
