"""How the hypotheses that were tried stand: the first, those that the data do not tell from it, those that come to the
same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from moeparity.doctor.case import Case, Tried
from moeparity.doctor.judge import ranked

SAME = 0.02
"""Two hypotheses come to the same if so little of what either makes is not made by the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Of each hypothesis, with the best of its numbers, in the order of what they explain.

    rivals: those that the data do not tell from the first. alike: those that make the same difference as the first, at
    the same party.
    """

    order: tuple[Tried, ...]
    rivals: tuple[Tried, ...]
    alike: tuple[Tried, ...]

    @property
    def first(self) -> Tried:
        """That which explains most; of those that come to the same, the plainest."""
        return self.order[0]

    @property
    def contenders(self) -> tuple[Tried, ...]:
        """The first and its rivals."""
        return (self.first, *self.rivals)


def standing(case: Case, tried: Sequence[Tried]) -> Standing:
    """Rank what was tried; of two with the same bits, the one with less wrong."""
    best = _best_numbers(case, tried)
    ranking = ranked(
        case.difference,
        [each.simulated for each in best],
        [each.hypothesis.plainness * len(tried) + len(each.hypothesis.plants) for each in best],
    )
    first, legal = best[ranking.order[0]], case.legal_difference
    alike = [each for each in best if each is first or same(first, each, legal)]
    rivals = [best[index] for index in ranking.rivals]
    # A plainer one that is surely worse is none that comes to the same.
    equal = [each for each in alike if each is first or each in rivals]
    plainest = min(equal, key=lambda each: each.hypothesis.plainness)
    others = [best[index] for index in ranking.order]
    return Standing(
        order=(plainest, *(each for each in others if each is not plainest)),
        rivals=tuple(each for each in (first, *rivals) if each is not plainest and each not in alike),
        alike=tuple(each for each in alike if each is not plainest),
    )


def same(a: Tried, b: Tried, legal: Tensor) -> bool:
    """Whether two hypotheses about one party make the same difference; `legal` is that with nothing wrong."""
    if a.party is None or a.party != b.party:
        return False
    effects = [each.simulated - legal for each in (a, b)]
    size = min(float((x * x).sum()) for x in effects)
    return size > 0 and float(((effects[0] - effects[1]) ** 2).sum()) < SAME * size


def _best_numbers(case: Case, tried: Sequence[Tried]) -> list[Tried]:
    """Of hypotheses that differ in a number only, that which was solved for; of several the one that leaves least."""
    best: dict[tuple[str, str | None], tuple[bool, float, Tried]] = {}
    for each in tried:
        key = (each.hypothesis.family, each.party)
        entry = (each.number is None, float(torch.sum((case.difference.d - each.simulated) ** 2)), each)
        if key not in best or entry[:2] < best[key][:2]:
            best[key] = entry
    return [each for _, _, each in best.values()]
