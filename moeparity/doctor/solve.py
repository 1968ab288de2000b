"""Solves for the numbers of leading hypotheses: the number that explains most, and how sure it is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from moeparity.doctor.case import Case, Tried
from moeparity.doctor.hypotheses import Hypothesis
from moeparity.doctor.numbers import Family
from moeparity.doctor.report import Party
from moeparity.evidence.explain.numbers import Search, figures, search, solve_together
from moeparity.metrics.verdict import Interval

_SOLVED = 3
"""At most this many numbers are solved for."""
_LEADS = 0.5
"""A number is solved for if it explains so much of what the best hypothesis does, where each may be scaled."""
_SAMPLE = 16
"""How many sequences a number is solved on."""
_STEP = 0.02
"""The fraction of itself by which a number is moved to see what it changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lead:
    """A family whose number is to be solved for: at which party, and where the search starts."""

    family: Family
    party: Party
    near: float

    @property
    def search(self) -> Search:
        """The search for its number."""
        return search(self.near, near=self.near != 0)


def with_numbers(case: Case, tried: Sequence[Tried], families: Mapping[str, Family]) -> list[Tried]:
    """Solve for the numbers of the hypotheses that lead, where that was not done before: each comes back with its best
    number, and of the numbers that the data do not tell from it, with the one of fewest digits.
    """
    solved = {(each.hypothesis.family, each.party) for each in tried if each.number is not None}
    leads = [lead for lead in _leading(case, tried, families) if (lead.family.name, lead.party) not in solved]
    return solved_for(case, leads)


def _leading(case: Case, tried: Sequence[Tried], families: Mapping[str, Family]) -> Iterator[Lead]:
    """Families that explain most at some number, each with a party and the number to start from. That is the best
    number tried; for the other party it is the inverse, which there makes nearly the same difference.
    """
    leaders: dict[tuple[str, Party], None] = {}
    most = 0.0
    for index, along in case.difference.leading([each.simulated for each in tried]):
        hypothesis, party = tried[index].hypothesis, tried[index].party
        most = max(most, along)
        if along < _LEADS * most or len(leaders) == _SOLVED:
            break
        if party is not None and hypothesis.family in families and families[hypothesis.family].is_solved:
            leaders[hypothesis.family, party] = None
    for name, party in leaders:
        family = families[name]
        members = [each for each in tried if (each.hypothesis.family, each.party) == (name, party)]
        best = min(members, key=lambda each: case.difference.remains(each.simulated))
        assert best.hypothesis.number is not None
        near = best.hypothesis.number.value
        yield Lead(family=family, party=party, near=near)
        if family.nominal and near:
            inverse = family.nominal**2 / near
            yield from (Lead(family=family, party=side, near=inverse) for side in case.recorded if side != party)


def solved_for(case: Case, leads: Sequence[Lead]) -> list[Tried]:
    """The hypothesis of each family that explains most; none of one whose number makes no difference. The numbers that
    all families are tried with at a time run in one pass.
    """
    sample = case.of(torch.arange(min(_SAMPLE, case.bench.tokens.input_ids.shape[0])))

    def remainders(numbers_of: Mapping[int, Sequence[float]]) -> dict[int, list[float]]:
        return {
            index: [_remains(sample, run) for run in runs] for index, runs in _runs(sample, leads, numbers_of).items()
        }

    solved = solve_together({index: lead.search for index, lead in enumerate(leads)}, remainders)
    numbers_of = {index: [*numbers, _beside(numbers[0])] for index, numbers in solved.items() if numbers}
    best = (_best(case, numbers_of[index], runs) for index, runs in _runs(case, leads, numbers_of).items())
    return [each for each in best if each is not None]


def _beside(number: float) -> float:
    """A number so near that what it makes lies on a straight line with what this one makes."""
    return number + (_STEP * abs(number) or _STEP)


def _runs(
    case: Case, leads: Sequence[Lead], numbers_of: Mapping[int, Sequence[float]]
) -> dict[int, list[Tried | None]]:
    """What each lead, by its index, makes with some numbers; None where it can't run. What runs under one profile runs
    in one pass.
    """
    hypotheses = {index: [leads[index].family.at(x) for x in numbers] for index, numbers in numbers_of.items()}
    of_profile: dict[str, list[Hypothesis]] = {}
    for index, those in hypotheses.items():
        of_profile.setdefault(case.profile_in_fp32(leads[index].party), []).extend(those)
    for profile, those in of_profile.items():
        case.bench.score(those, [profile])
    every = [each for those in hypotheses.values() for each in those]
    runs = {(each.hypothesis.number, each.party): each for each in case.tried(every)}
    return {index: [runs.get((x.number, leads[index].party)) for x in those] for index, those in hypotheses.items()}


def _remains(case: Case, run: Tried | None) -> float:
    """What is left of the difference; infinite if that is no number."""
    remains = math.inf if run is None else case.difference.remains(run.simulated)
    return remains if math.isfinite(remains) else math.inf


def _best(case: Case, tried_numbers: Sequence[float], tried: Sequence[Tried | None]) -> Tried | None:
    """Of what ran with the numbers of a search and, last, with one beside the first of them: the best, or the plainest
    of those that the data do not tell from it.
    """
    runs = {number: run for number, run in zip(tried_numbers, tried, strict=True) if run is not None}
    *numbers, beside = tried_numbers
    if not {numbers[0], beside} <= runs.keys():
        return None
    # The sample's best need not be best on all sequences, and a search may stop near a plain number that leaves less.
    candidates = [x for x in numbers if x in runs and x != beside]
    best = min(candidates, key=lambda x: case.difference.remains(runs[x].simulated))
    interval = _interval(case, runs[best], runs[beside])
    inside = [x for x in candidates if interval.low <= x <= interval.high]
    plainest = min(inside or [best], key=figures)
    return replace(runs[plainest], number=interval)


def _interval(case: Case, at: Tried, beside: Tried) -> Interval:
    """The number that explains most, with its interval over sequences. Two numbers were simulated, `at` and `beside`;
    what another one would give is taken from the straight line through them.
    """
    assert at.hypothesis.number is not None
    assert beside.hypothesis.number is not None
    step = beside.hypothesis.number.value - at.hypothesis.number.value
    change = (beside.simulated - at.simulated) / step
    by = replace(case.difference, d=case.difference.d - at.simulated).slope(change)
    number = at.hypothesis.number.value
    return replace(by, estimate=number + by.estimate, low=number + by.low, high=number + by.high)
