"""How much more, or less, two toggles cost together than the sum of what each costs by itself."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from moeparity.search.contrast import Bounds, Contrast
from moeparity.search.memo import Memo, Mixture, Names
from moeparity.search.tree import Cell, leaves, name


@dataclass(frozen=True, slots=True, kw_only=True)
class Interaction:
    """The interaction of two cells against two backgrounds, in nats per token; None if an op refuses a mixture or a KL
    is not finite. v is the KL of a mixture.

    in_reference: v(ab) - v(a) - v(b) + v(), all others at the reference's values.
    in_candidate: v(all) - v(all without a) - v(all without b) + v(all without ab), all others at the candidate's
    values. Above 0 they amplify each other; below 0 they can replace each other or undo each other. These are plain
    second differences at the two ends, not the Shapley interaction index, which is a mean over all backgrounds; an
    interaction through a third player shows in neither. Intervals are 95 % over sequences, each by itself.
    """

    first: str
    second: str
    in_reference: Fraction | None
    in_reference_interval: tuple[float, float]
    in_candidate: Fraction | None
    in_candidate_interval: tuple[float, float]

    def renamed(self, names: Names) -> Interaction:
        """A copy with the cells' names in a report."""
        return replace(self, first=names(self.first), second=names(self.second))


def interactions(memo: Memo, cells: Sequence[Cell], bounds: Bounds) -> list[Interaction]:
    """The interactions of all pairs of cells, in order; asks for one batch of at most n (n - 1) + 2 n + 2 mixtures.

    Raises ValueError for cells that share a player.
    """
    moves = [frozenset(leaves(cell)) for cell in cells]
    if sum(map(len, moves)) != len(frozenset().union(*moves)):
        raise ValueError(f"cells {[name(cell) for cell in cells]} share players; disjoint ones expected")
    pairs = list(itertools.combinations(range(len(cells)), 2))
    low = [second_difference(frozenset(), moves[a], moves[b]) for a, b in pairs]
    high = [second_difference(memo.everything - moves[a] - moves[b], moves[a], moves[b]) for a, b in pairs]
    memo.ask(mixture for contrast in (*low, *high) for mixture in contrast.weights)
    return [
        Interaction(
            first=name(cells[a]),
            second=name(cells[b]),
            in_reference=in_reference.value(memo),
            in_reference_interval=in_reference.interval(memo, bounds),
            in_candidate=in_candidate.value(memo),
            in_candidate_interval=in_candidate.interval(memo, bounds),
        )
        for (a, b), in_reference, in_candidate in zip(pairs, low, high, strict=True)
    ]


def second_difference(base: Mixture, a: Mixture, b: Mixture) -> Contrast:
    """v(base, a, b) - v(base, a) - v(base, b) + v(base), for disjoint cells outside `base`."""
    return Contrast({base | a | b: 1, base | a: -1, base | b: -1, base: 1})
