"""Sets of toggles whose restoring is enough: whether one is, asked within a budget, and how more are come by.

`ddmin` shrinks a set that is enough; `further` runs it again and again without a toggle of each set found before.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

from moeparity.search.memo import Memo, Mixture, Outcome, Players

PARTS = 4096
"""Up to so many subsets of one size are listed to see whether a set is minimal."""

VISITS = 4096
"""Nodes of the hitting-set tree that are looked at; most are answered by a set that is already known."""

AreFixes = Callable[[Sequence[Players]], Sequence[bool]]
"""Which of some sets, when restored, bring the metric under the gate; asked in one batch."""


class Restoring:
    """Sets of toggles, of which some are fixes: restored in the candidate they bring it under the gate.

    `budget` bounds the mixtures asked for from here on; who asks looks at `affords` first. `mixtures` are the
    mixtures asked about, known before or not.
    """

    def __init__(self, memo: Memo, gate: float, budget: int) -> None:
        self.memo = memo
        self.gate = gate
        self.start = memo.effort
        self.budget = budget
        self.mixtures: set[Mixture] = set()

    def mixture(self, toggles: Iterable[str]) -> Mixture:
        """The candidate with these toggles of the reference."""
        return self.memo.everything - frozenset(toggles)

    def are_fixes(self, sets: Sequence[Iterable[str]]) -> list[bool]:
        """Which of the sets, when restored, bring the candidate under the gate; one batch."""
        mixtures = [self.mixture(toggles) for toggles in sets]
        self.mixtures.update(mixtures)
        return [under(outcome, self.gate) for outcome in self.memo.ask(mixtures)]

    def cost(self, sets: Sequence[Iterable[str]]) -> int:
        """The mixtures asked for, these included."""
        return self.memo.since(self.start).mixtures + len(self.memo.additions(map(self.mixture, sets)))

    def affords(self, sets: Sequence[Iterable[str]]) -> bool:
        """Whether the budget holds these sets too."""
        return self.cost(sets) <= self.budget

    def within(self, toggles: Players) -> Players | None:
        """The smallest proper subset known to be a fix."""
        mixture = self.mixture(toggles)
        fixes = (m for m, outcome in self.memo.outcomes.items() if mixture < m and under(outcome, self.gate))
        largest = max(fixes, key=len, default=None)
        return None if largest is None else tuple(toggle for toggle in toggles if toggle not in largest)


def under(outcome: Outcome | None, gate: float) -> bool:
    """Whether a mixture ran and passes: the reference's bits at every node, or the upper bound below the gate."""
    return outcome is not None and (outcome.exact or outcome.upper < gate)


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
        position = next((i for i, answer in enumerate(answers) if answer), None)
        if position is None:
            if count == len(current):
                break
            count = min(2 * count, len(current))
        elif position < len(parts):
            current, count = parts[position], 2
        else:
            current, count = rests[position - len(parts)], max(count - 1, 2)
    return current


def _parts(players: Players, count: int) -> list[Players]:
    """`count` runs of neighbours, as even as can be; none is empty for count <= len(players)."""
    borders = [len(players) * i // count for i in range(count + 1)]
    return [players[low:high] for low, high in itertools.pairwise(borders)]


def further(players: Players, minimal_sets: Sequence[Players], search: Restoring, limit: int) -> dict[Players, bool]:
    """Fix sets beside `minimal_sets`, until there are `limit` of both; the value says whether it is minimal.

    Breadth first over sets of toggles that may not be restored (Reiter, A Theory of Diagnosis from First Principles,
    1987): where a known set avoids them it is taken, else ddmin looks among the others, if restoring these is a fix;
    each toggle of the set is then forbidden in turn. Finds no set where restoring all that is allowed is no fix,
    though a smaller set may be one.
    """
    additions: dict[Players, bool] = {}
    for forbidden, avoiding in _nodes([*minimal_sets], additions):
        if len(minimal_sets) + len(additions) >= limit:
            break
        candidates = tuple(player for player in players if player not in forbidden)
        if not search.affords([candidates]):
            break
        if search.are_fixes([candidates])[0]:
            toggles, minimal = _smallest(ddmin(search.are_fixes, candidates), search)
            additions[toggles] = minimal
            avoiding.append(toggles)
    return additions


def _nodes(
    minimal_sets: Sequence[Players], additions: dict[Players, bool]
) -> Iterator[tuple[frozenset[str], list[Players]]]:
    """What is forbidden at each node that no set answers yet; who asks may append the set that answers it."""
    start: frozenset[str] = frozenset()
    queue, visited = deque([start]), {start}
    visits = 0
    while queue and visits < VISITS:
        forbidden = queue.popleft()
        visits += 1
        answer = [next((t for t in itertools.chain(minimal_sets, additions) if not forbidden & set(t)), None)]
        sets = [toggles for toggles in answer if toggles is not None]
        if not sets:
            yield forbidden, sets
        for toggle in itertools.chain(*sets):
            node = forbidden | {toggle}
            if node not in visited:
                visited.add(node)
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
