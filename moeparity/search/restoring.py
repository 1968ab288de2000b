"""Whether restoring some toggles is enough, asked of the oracle within a budget."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from moeparity.search.memo import Coalition, Oracle, Outcome, Players


class Restoring:
    """Sets of toggles, of which some are fixes: restored in the candidate they bring it under the gate.

    `budget` bounds the mixtures asked for from here on; who asks looks at `affords` first. `looked_at` are the
    mixtures asked about, known before or not.
    """

    def __init__(self, oracle: Oracle, gate: float, budget: int) -> None:
        self.oracle = oracle
        self.gate = gate
        self.before = oracle.spent
        self.budget = budget
        self.looked_at: set[Coalition] = set()

    def mixture(self, restored: Iterable[str]) -> Coalition:
        """The candidate with these toggles of the reference."""
        return self.oracle.everything - frozenset(restored)

    def are_fixes(self, sets: Sequence[Iterable[str]]) -> list[bool]:
        """Which of the sets, when restored, bring the candidate under the gate; one batch."""
        mixtures = [self.mixture(restored) for restored in sets]
        self.looked_at.update(mixtures)
        return [under(outcome, self.gate) for outcome in self.oracle.ask(mixtures)]

    def cost(self, sets: Sequence[Iterable[str]]) -> int:
        """The mixtures asked for, these included."""
        return self.oracle.since(self.before).mixtures + len(self.oracle.unknown(map(self.mixture, sets)))

    def affords(self, sets: Sequence[Iterable[str]]) -> bool:
        """Whether the budget holds these sets too."""
        return self.cost(sets) <= self.budget

    def within(self, toggles: Players) -> Players | None:
        """The smallest proper subset known to be a fix."""
        inside = self.mixture(toggles)
        fixes = (m for m, outcome in self.oracle.known.items() if inside < m and under(outcome, self.gate))
        largest = max(fixes, key=len, default=None)
        return None if largest is None else tuple(toggle for toggle in toggles if toggle not in largest)


def under(outcome: Outcome | None, gate: float) -> bool:
    """Whether a mixture ran and passes: the reference's bits at every node, or the upper bound below the gate."""
    return outcome is not None and (outcome.exact or outcome.upper < gate)
