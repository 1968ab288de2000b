"""How the hypotheses that were tried stand: the first, those that the data do not tell from it, and those that make the
same difference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from moeparity.doctor.case import Case, Tried
from moeparity.doctor.judge import ranked
from moeparity.doctor.misread import IN_ONE_PHASE

SAME = 0.02
"""Two differences count as the same if their distance, squared, is below this fraction of the smaller one, squared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The hypotheses, each with its best number, in the order of what they explain.

    rivals: those that the data do not tell from the first. alike: those that make the same difference as the first, at
    the same party, or are the same mistake in other steps and not told from it. is_settled: the first leaves no more
    than noise of a difference far beyond noise, or of what else the log holds.
    """

    order: tuple[Tried, ...]
    rivals: tuple[Tried, ...]
    alike: tuple[Tried, ...]
    is_settled: bool = False

    @property
    def first(self) -> Tried:
        """The hypothesis that explains most; the plainest, if several make the same difference."""
        return self.order[0]

    @property
    def contenders(self) -> tuple[Tried, ...]:
        """The first and its rivals."""
        return (self.first, *self.rivals)


def standing(case: Case, tried: Sequence[Tried]) -> Standing:
    """Rank what was tried and is not ruled out; of two with the same bits, the one with less wrong."""
    best = _best_numbers(case, [each for each in tried if (each.hypothesis.name, each.party) not in case.ruled_out])
    ranking = ranked(
        case.difference,
        [each.simulated for each in best],
        [each.hypothesis.plainness * len(tried) + len(each.hypothesis.plants) for each in best],
    )
    first, legal = best[ranking.order[0]], case.legal_difference
    alike = [each for each in best if each is first or same(first, each, legal, case.difference.counted)]
    rivals = [best[index] for index in ranking.rivals]
    alike += [each for each in rivals if each not in alike and _is_of_other_steps(first, each)]
    # A plainer hypothesis that is surely worse does not make the same difference.
    equal = [each for each in alike if each is first or each in rivals]
    plainest = min(equal, key=lambda each: each.hypothesis.plainness)
    alike += [each for each in rivals if each not in alike and same(plainest, each, legal, case.difference.counted)]
    others = [best[index] for index in ranking.order]
    return Standing(
        order=(plainest, *(each for each in others if each is not plainest)),
        rivals=tuple(each for each in (first, *rivals) if each is not plainest and each not in alike),
        alike=tuple(each for each in alike if each is not plainest),
        is_settled=(plainest.hypothesis.name, plainest.party) in case.fitting,
    )


def _is_of_other_steps(a: Tried, b: Tried) -> bool:
    """Whether one hypothesis is the other one in prompts or in decoding alone: the same mistake, to be mended in the
    same way.
    """
    base, variant = sorted((a.hypothesis, b.hypothesis), key=lambda each: each.plainness)
    return a.party == b.party and variant.name in {f"{base.name}{ending}" for ending in IN_ONE_PHASE.values()}


def same(a: Tried, b: Tried, legal: Tensor, counted: Callable[[Tensor], Tensor]) -> bool:
    """Whether two hypotheses about one party make the same difference. Two with an open number may differ by a factor,
    which other numbers would give. legal: the difference with nothing wrong. counted: divides by the spread of each
    token.
    """
    if a.party is None or a.party != b.party:
        return False
    x, y = (counted(each.simulated - legal) for each in (a, b))
    squares = float((x * x).sum()), float((y * y).sum())
    if not min(squares) > 0:
        return False
    if a.hypothesis.number is not None and b.hypothesis.number is not None:
        x, y = (effect / math.sqrt(square) for effect, square in zip((x, y), squares, strict=True))
        squares = 1.0, 1.0
    return float(((x - y) ** 2).sum()) < SAME * min(squares)


def _best_numbers(case: Case, tried: Sequence[Tried]) -> list[Tried]:
    """Of hypotheses that differ only in a number, the one whose number was solved for; of several, the one that leaves
    least.
    """
    best: dict[tuple[str, str | None], tuple[bool, float, Tried]] = {}
    for each in tried:
        key = (each.hypothesis.family, each.party)
        entry = (each.number is None, case.difference.remains(each.simulated), each)
        if key not in best or entry[:2] < best[key][:2]:
            best[key] = entry
    return [each for _, _, each in best.values()]
