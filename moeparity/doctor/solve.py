"""Solves for the numbers of leading hypotheses: the number that explains most, and how sure it is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch

from moeparity.doctor.case import Case, Tried
from moeparity.doctor.hypotheses import Hypothesis
from moeparity.doctor.numbers import Family, solved
from moeparity.doctor.report import Party
from moeparity.evidence.explain.numbers import figures
from moeparity.metrics.verdict import Interval

_SOLVED = 3
"""At most this many numbers are solved for."""
_LEADS = 0.5
"""A number is solved for if it explains so much of what the best hypothesis does, where each may be scaled."""
_SAMPLE = 16
"""How many sequences a number is solved on."""
_STEP = 0.02
"""The fraction of itself by which a number is moved to see what it changes."""


def with_numbers(case: Case, tried: Sequence[Tried], families: Mapping[str, Family]) -> list[Tried]:
    """Solve for the numbers of the hypotheses that lead: each comes back with its best number, and of the numbers that
    the data do not tell from it, with the one of fewest digits.
    """
    runs = (solved_for(case, family, party, near) for family, party, near in _leading(case, tried, families))
    return [each for each in runs if each is not None]


def _leading(
    case: Case, tried: Sequence[Tried], families: Mapping[str, Family]
) -> Iterator[tuple[Family, Party, float]]:
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
        yield family, party, near
        if family.nominal and near:
            yield from ((family, each, family.nominal**2 / near) for each in case.recorded if each != party)


def solved_for(case: Case, family: Family, party: Party, near: float) -> Tried | None:
    """The hypothesis of a family that explains most; None if its number makes no difference."""
    sample = case.of(torch.arange(min(_SAMPLE, case.bench.tokens.input_ids.shape[0])))

    def remainder(hypothesis: Hypothesis) -> float:
        runs = sample.simulated([hypothesis], party)
        remains = sample.difference.remains(runs[0].simulated) if runs else math.inf
        return remains if math.isfinite(remains) else math.inf

    candidates = solved(family, near, remainder)
    if not candidates:
        return None
    numbers = [each.number.value for each in candidates if each.number is not None]
    beside = numbers[0] + (_STEP * abs(numbers[0]) or _STEP)
    runs = {
        run.hypothesis.number.value: run
        for run in case.simulated([*candidates, family.at(beside)], party)
        if run.hypothesis.number is not None
    }
    if not {numbers[0], beside} <= runs.keys():
        return None
    # The sample's best need not be best on all sequences, and a search may stop near a plain number that leaves less.
    candidate_numbers = [x for x in numbers if x in runs and x != beside]
    best = min(candidate_numbers, key=lambda x: case.difference.remains(runs[x].simulated))
    interval = _interval(case, runs[best], runs[beside])
    inside = [x for x in candidate_numbers if interval.low <= x <= interval.high]
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
