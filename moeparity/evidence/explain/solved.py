"""Combinations with a number solved for, and the other numbers that do as well."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice
from typing import Final

from moeparity.evidence.explain.faults import is_fault
from moeparity.evidence.explain.numbers import PLAIN, alike, figures, solve
from moeparity.evidence.explain.pairs import solve_pair
from moeparity.evidence.explain.replaced import THETA, Choices
from moeparity.evidence.explain.tries import Tries
from moeparity.evidence.explain.vocabulary import numbers
from moeparity.plan.setting import Place

MOST: Final = 6
"""Choices that are put together, at most."""
BETTER: Final = 0.95
"""A number that is solved for again has to leave so much less, or the search would follow it into ever finer ones."""


def solved(tries: Tries, parent: Choices) -> Iterator[Choices]:
    """The combination with one of its numbers, or a further one, solved for; of two numbers both together."""
    replaced, values = tries.kernels.replaced, dict(parent)
    values_there = dict(numbers(replaced, replaced.bound(parent)))
    faulty = {place: value for place, value in parent if is_fault(place) and isinstance(value, float)}
    for place, at in (values_there | faulty).items():
        others = frozenset(choice for choice in parent if choice[0] != place)
        if place in values:
            # A word, such as an eps of `config`, stands for the number that is there.
            start = at if isinstance(values[place], str) else float(values[place])
            again = solutions(tries, others, place, start, near=True)
            yield from (better for better in again if tries.remainder(better) < BETTER * tries.remainder(parent))
        elif len(parent) < MOST and matters(tries, others, place, at):
            for choices in solutions(tries, others, place, at, near=False):
                yield choices
                yield from _pairs(tries, choices, place)
    of_parent = sorted(place for place, value in parent if isinstance(value, float))
    yield from _pairs(tries, parent, of_parent[-1]) if of_parent else ()


def _pairs(tries: Tries, choices: Choices, last: Place) -> Iterator[Choices]:
    """The combination, with the number at a place and each other number solved for together: solved for one by one,
    each makes up for the other's mistake.
    """
    values = {place: value for place, value in choices if isinstance(value, float)}
    for place in sorted(values.keys() - {last}):
        others = frozenset(choice for choice in choices if choice[0] not in {place, last})
        yield from _pair(tries, others, place, last, (values[place], values[last]))


def _pair(tries: Tries, others: Choices, first: Place, second: Place, at: tuple[float, float]) -> Iterator[Choices]:
    if 0 in at:
        return

    def combination(a: float, b: float) -> Choices:
        return others | {(first, a), (second, b)}

    def remainder(a: float, b: float) -> float:
        return tries.remainder(combination(a, b)) if math.isfinite(a) and math.isfinite(b) else math.inf

    pairs = list(solve_pair(remainder, *at))
    least = sorted(pairs, key=lambda pair: remainder(*pair))
    plain = (pair for pair in least if all(figures(x) <= PLAIN for x in pair))
    yield from dict.fromkeys(combination(*pair) for pair in (*least[:1], *islice(plain, 1)))


def matters(tries: Tries, others: Choices, place: Place, at: float) -> bool:
    """Whether anything depends on a number."""
    return tries.remainder(others | {(place, at * 2 + 1)}) != tries.remainder(others)


def solutions(tries: Tries, others: Choices, place: Place, at: float, *, near: bool) -> Iterator[Choices]:
    """The combination with the number at a place that leaves least, and with the plain ones that do."""

    def combination(x: float) -> Choices:
        return others | {(place, x)}

    def remainder(x: float) -> float:
        return tries.remainder(combination(x)) if math.isfinite(x) else math.inf

    candidates = list(solve(remainder, at, near=near, dense=place[1] == THETA))
    exact = [x for x in candidates if remainder(x) == 0.0]
    # The plainest that gives every bit. Else the one that leaves least, whose last figures the choices that are still
    # missing have made, and the plain ones that do.
    least = sorted(candidates, key=remainder)
    rounded = (x for most in (PLAIN, 1) for x in islice((x for x in least if figures(x) <= most), 1))
    yield from dict.fromkeys(combination(x) for x in exact[-1:] or (*least[:1], *rounded))


def other_numbers(tries: Tries, choices: Choices) -> Iterator[Choices]:
    """The ends of the interval in which a number gives the same bits, and the plain numbers in it."""
    for place, value in choices:
        if not isinstance(value, float):
            continue
        others = choices - {(place, value)}

        def exact(x: float, others: Choices = others, place: Place = place) -> bool:
            return tries.exact(others | {(place, x)})

        yield from (others | {(place, x)} for x in alike(exact, value))
