"""Names, counts and shares as every report writes them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from moeparity.metrics.verdict import Interval


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


def between(low: float, high: float, digits: str = ".3g") -> str:
    """`[0.1, 0.3]`, `[0.1, no bound]`; `no interval` where there is neither bound."""
    if math.isinf(low) and math.isinf(high):
        return "no interval"
    return f"[{', '.join('no bound' if math.isinf(bound) else f'{bound:{digits}}' for bound in (low, high))}]"


def after_estimate(value: Interval) -> str:
    """What follows an estimate: ` [0.1, 0.3] (95%, bootstrap-t over sequences)`, or `, no interval`."""
    if value.method == "none":
        return ", no interval"
    return f" {between(value.low, value.high)} ({value.level:.0%}, {value.method} over sequences)"


def of_whole(value: float | None, whole: float) -> str:
    """A trial's KL and how much of the candidate's that is: `1.20e-04  37%`; the share only where there is a whole."""
    if value is None:
        return "cannot run"
    return f"{value:.2e} {value / whole:>4.0%}" if whole > 0 else f"{value:.2e}"
