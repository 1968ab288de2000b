"""Hypotheses with an open number that lead: the number that explains most, and how sure it is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice

import torch

from moeparity.doctor.case import Case, Tried
from moeparity.doctor.hypotheses import Hypothesis
from moeparity.doctor.numbers import Family, solved
from moeparity.doctor.report import Party
from moeparity.evidence.explain.numbers import figures
from moeparity.metrics.verdict import Interval

_SOLVED = 3
"""So many numbers are solved for."""
_LEADS = 0.5
"""A number is solved for if it explains so much of what the best hypothesis does, where each may be scaled."""
_SAMPLE = 16
"""Sequences that a number is solved on."""
_STEP = 0.02
"""By how much of itself a number is moved to see what it changes."""


def with_numbers(case: Case, tried: Sequence[Tried], families: Mapping[str, Family]) -> list[Tried]:
    """Solve for the numbers of the hypotheses that lead: each comes back with its best number, and of the numbers that
    the data do not tell from it, with the one of fewest digits.
    """
    runs = (_solved(case, family, party, near) for family, party, near in _leading(case, tried, families))
    return [each for each in runs if each is not None]


def _leading(
    case: Case, tried: Sequence[Tried], families: Mapping[str, Family]
) -> Iterator[tuple[Family, Party, float]]:
    """Families that explain most at any number, for a party, and the number to start from."""
    along = [case.difference.along(each.simulated) for each in tried]
    leaders: dict[tuple[str, Party], None] = {}
    for index in case.difference.leading([each.simulated for each in tried]):
        hypothesis, party = tried[index].hypothesis, tried[index].party
        if along[index] < _LEADS * max(along):
            break
        if party is not None and hypothesis.family in families and families[hypothesis.family].is_solved:
            leaders[hypothesis.family, party] = None
    for family, party in islice(leaders, _SOLVED):
        members = [each for each in tried if (each.hypothesis.family, each.party) == (family, party)]
        best = min(members, key=lambda each: float(((case.difference.d - each.simulated) ** 2).sum()))
        assert best.hypothesis.number is not None
        yield families[family], party, best.hypothesis.number.value


def _solved(case: Case, family: Family, party: Party, near: float) -> Tried | None:
    """The hypothesis of a family that explains most; None if its number makes no difference."""
    sample = case.of(torch.arange(min(_SAMPLE, case.bench.tokens.input_ids.shape[0])))

    def remainder(hypothesis: Hypothesis) -> float:
        runs = sample.simulated([hypothesis], party)
        remains = float(((sample.difference.d - runs[0].simulated) ** 2).sum()) if runs else math.inf
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
    interval = _interval(case, runs[numbers[0]], runs[beside])
    inside = [x for x in numbers if x in runs and interval.low <= x <= interval.high]
    plainest = min(inside or numbers[:1], key=figures)
    return replace(runs[plainest], number=interval)


def _interval(case: Case, at: Tried, beside: Tried) -> Interval:
    """The number at which the squares that are left are least, by how they change from one number to the next, with
    its interval over sequences.
    """
    assert at.hypothesis.number is not None
    assert beside.hypothesis.number is not None
    step = beside.hypothesis.number.value - at.hypothesis.number.value
    change = (beside.simulated - at.simulated) / step
    by = replace(case.difference, d=case.difference.d - at.simulated).slope(change)
    number = at.hypothesis.number.value
    return replace(by, estimate=number + by.estimate, low=number + by.low, high=number + by.high)
