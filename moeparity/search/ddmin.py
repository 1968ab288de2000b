"""Delta debugging, asked in batches."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from moeparity.search.memo import Players

AreFixes = Callable[[Sequence[Players]], Sequence[bool]]
"""Which of some sets, when restored, bring the metric under the gate; asked in one batch."""


def ddmin(are_fixes: AreFixes, start: Players) -> Players:
    """A part of `start`, itself a fix, from which no single toggle can be left out.

    Zeller and Hildebrandt, Simplifying and Isolating Failure-Inducing Input (2002), ddmin, with all parts and all
    complements of one granularity asked in one batch, of which the first that is a fix is taken: parts before
    complements, in order. What is refused counts as no fix, their "unresolved". `start` must be a fix and the empty
    set none. Where fixes are not monotone (a part that is none may hold one that is), the result holds no fix that
    lacks one toggle of it, but may hold a smaller one.
    """
    current, count = start, 2
    while len(current) > 1:
        parts = _parts(current, count)
        rests = [tuple(toggle for toggle in current if toggle not in part) for part in parts]
        answers = are_fixes([*parts, *rests])
        first = next((i for i, answer in enumerate(answers) if answer), None)
        if first is None:
            if count == len(current):
                break
            count = min(2 * count, len(current))
        elif first < len(parts):
            current, count = parts[first], 2
        else:
            current, count = rests[first - len(parts)], max(count - 1, 2)
    return current


def _parts(players: Players, count: int) -> list[Players]:
    """`count` runs of neighbours, as even as can be; none is empty for count <= len(players)."""
    borders = [len(players) * i // count for i in range(count + 1)]
    return [players[low:high] for low, high in itertools.pairwise(borders)]
