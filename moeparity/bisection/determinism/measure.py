"""The list of users' functions that are not deterministic."""

from __future__ import annotations

from moeparity.bisection.context import Context
from moeparity.bisection.determinism.data import Determinism, NotDeterministic
from moeparity.bisection.determinism.observe import REPEATED


def measure(of: Context) -> Determinism:
    """One entry for each side and node."""
    repeats = of.observed.of_watch(REPEATED) or {}
    return Determinism(
        not_deterministic=tuple(
            NotDeterministic(side=side, call=again.call, node=node, values=again.values, of=again.of, calls=again.calls)
            for (side, node), again in repeats.items()
            if again.values
        )
    )
