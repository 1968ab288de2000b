"""Names in a sentence."""

from __future__ import annotations

from collections.abc import Sequence


def enumerated(names: Sequence[str]) -> str:
    """`a, b and c`."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
