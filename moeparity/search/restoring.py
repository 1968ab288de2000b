"""Which sets of toggles are fixes, asked within a budget, and how to find more of them.

`ddmin` shrinks a fix; `further` repeats that without one toggle of each set found before.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

from moeparity.search.memo import Memo, Mixture, Outcome, Players

PARTS = 4096
"""To see whether a set is minimal, its subsets of one size are listed if they are at most this many."""

VISITS = 4096
"""How many nodes of the hitting-set tree are visited at most; most are answered by a known set."""

AreFixes = Callable[[Sequence[Players]], Sequence[bool]]
"""Which of some sets are fixes (restored, they bring the metric under the gate); asked in one batch."""


class Restoring:
    """Sets of toggles, of which some are fixes: restored in the candidate they bring it under the gate.

    budget: bounds the number of mixtures asked for from here on; callers check `affords` first. mixtures: all that were
    asked for, known before or not.
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
        """Which of the sets are fixes; one batch."""
        mixtures = [self.mixture(toggles) for toggles in sets]
        self.mixtures.update(mixtures)
        return [under(outcome, self.gate) for outcome in self.memo.ask(mixtures)]

    def cost(self, sets: Sequence[Iterable[str]]) -> int:
        """How many mixtures will have been asked for, these included."""
        return self.memo.since(self.start).mixtures + len(self.memo.additions(map(self.mixture, sets)))

    def affords(self, sets: Sequence[Iterable[str]]) -> bool:
        """Whether the budget covers these sets too."""
        return self.cost(sets) <= self.budget

    def within(self, toggles: Players) -> Players | None:
        """The smallest proper subset that is known to be a fix; None without one."""
        mixture = self.mixture(toggles)
        fixes = (m for m, outcome in self.memo.outcomes.items() if mixture < m and under(outcome, self.gate))
        largest = max(fixes, key=len, default=None)
        return None if largest is None else tuple(toggle for toggle in toggles if toggle not in largest)


def under(outcome: Outcome | None, gate: float) -> bool:
    """Whether a mixture ran and passes: the reference's bits at every node, or the upper bound below the gate."""
    return outcome is not None and (outcome.exact or outcome.upper < gate)


def ddmin(are_fixes: AreFixes, start: Players) -> Players:
    """A part of `start` that is a fix and from which no single toggle can be left out.

    This is ddmin (Zeller and Hildebrandt, Simplifying and Isolating Failure-Inducing Input, 2002). All parts and
    complements of one granularity are asked for in one batch, and the first fix is taken: parts before complements, in
    order. A refused mixture counts as no fix (their "unresolved"). `start` has to be a fix and the empty set not. If
    fixes are not monotone (a part that is no fix can contain one), the result may still contain a smaller fix, which
    lacks at least two of its toggles.
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
    """`count` parts of neighbours, of about equal size; none is empty if count <= len(players)."""
    borders = [len(players) * i // count for i in range(count + 1)]
    return [players[low:high] for low, high in itertools.pairwise(borders)]


def further(players: Players, minimal_sets: Sequence[Players], search: Restoring, limit: int) -> dict[Players, bool]:
    """Further fix sets, until there are `limit` with `minimal_sets`; the value says whether the set is minimal.

    Breadth-first search over sets of forbidden toggles (Reiter, A Theory of Diagnosis from First Principles, 1987). If
    a known set avoids the forbidden toggles it is taken; else, if restoring all others is a fix, ddmin looks among
    them. Then each toggle of that set is forbidden in turn. If restoring all allowed toggles is no fix, nothing is
    found there, though a smaller set may be a fix.
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
    """The forbidden toggles at each node that no known set answers; the caller may append the set that does."""
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
    """The smallest minimal fix within a fix, and True; if finding it costs too much, the fix itself and False."""
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
