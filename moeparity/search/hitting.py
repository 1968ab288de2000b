"""More fix sets than can be found by trying all sets: ddmin, again and again without a toggle of each set known."""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Iterator, Sequence

from moeparity.search.ddmin import ddmin
from moeparity.search.memo import Players
from moeparity.search.restoring import Restoring

PARTS = 4096
"""Up to so many subsets of one size are listed to see whether a set is minimal."""

VISITS = 4096
"""Nodes of the hitting-set tree that are looked at; most are answered by a set that is already known."""


def further(players: Players, known: Sequence[Players], search: Restoring, limit: int) -> dict[Players, bool]:
    """Fix sets beside the minimal ones `known`, until there are `limit` of both; the value says whether it is minimal.

    Breadth first over sets of toggles that may not be restored (Reiter, A Theory of Diagnosis from First Principles,
    1987): where a known set avoids them it is taken, else ddmin looks among the others, if restoring these is a fix;
    each toggle of the set is then forbidden in turn. Finds no set where restoring all that is allowed is no fix,
    though a smaller set may be one.
    """
    found: dict[Players, bool] = {}
    for forbidden, avoiding in _nodes([*known], found):
        if len(known) + len(found) >= limit:
            break
        allowed = tuple(player for player in players if player not in forbidden)
        if not search.affords([allowed]):
            break
        if search.are_fixes([allowed])[0]:
            toggles, minimal = _smallest(ddmin(search.are_fixes, allowed), search)
            found[toggles] = minimal
            avoiding.append(toggles)
    return found


def _nodes(known: Sequence[Players], found: dict[Players, bool]) -> Iterator[tuple[frozenset[str], list[Players]]]:
    """What is forbidden at each node that no set answers yet; who asks may append the set that answers it."""
    start: frozenset[str] = frozenset()
    queue, seen = deque([start]), {start}
    visits = 0
    while queue and visits < VISITS:
        forbidden = queue.popleft()
        visits += 1
        answer = [next((t for t in itertools.chain(known, found) if not forbidden & set(t)), None)]
        sets = [toggles for toggles in answer if toggles is not None]
        if not sets:
            yield forbidden, sets
        for toggle in itertools.chain(*sets):
            node = forbidden | {toggle}
            if node not in seen:
                seen.add(node)
                queue.append(node)


def _smallest(toggles: Players, search: Restoring) -> tuple[Players, bool]:
    """The first minimal fix within a fix, by size, and True; the fix itself and False where that costs too much."""
    for size in range(1, len(toggles)):
        if math.comb(len(toggles), size) > PARTS:
            return toggles, False
        parts = list(itertools.combinations(toggles, size))
        if not search.affords(parts):
            return toggles, False
        answers = search.are_fixes(parts)
        if any(answers):
            return parts[answers.index(True)], True
    return toggles, True
