"""Combinations with a number solved for, and the other numbers that do as well."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice
from typing import Final

from moeparity.evidence.explain.numbers import PLAIN, alike, figures, solve
from moeparity.evidence.explain.replaced import THETA, Choices
from moeparity.evidence.explain.tries import Tries
from moeparity.evidence.explain.vocabulary import numbers
from moeparity.plan.setting import Place

MOST: Final = 6
"""Choices that are put together, at most."""
BETTER: Final = 0.95
"""A number that is solved for again has to leave so much less, or the search would follow it into ever finer ones."""


def solved(tries: Tries, parent: Choices) -> Iterator[Choices]:
    """The combination with one of its numbers, or a further one, solved for."""
    replaced, values = tries.kernels.replaced, dict(parent)
    for place, at in numbers(replaced, replaced.bound(parent)):
        others = frozenset(choice for choice in parent if choice[0] != place)
        if place in values:
            # A word, such as an eps of `config`, stands for the number that is there.
            start = at if isinstance(values[place], str) else float(values[place])
            again = solutions(tries, others, place, start, near=True)
            yield from (better for better in again if tries.remainder(better) < BETTER * tries.remainder(parent))
        elif len(parent) < MOST and matters(tries, others, place, at):
            for choices in solutions(tries, others, place, at, near=False):
                yield choices
                yield from _settled(tries, choices, place)


def _settled(tries: Tries, choices: Choices, last: Place) -> Iterator[Choices]:
    """The combination with its other numbers solved for anew beside the last one, where that leaves less: before, they
    made up for it.
    """
    for choice in sorted(choices, key=str):
        if choice[0] != last and isinstance(choice[1], float):
            for better in solutions(tries, choices - {choice}, choice[0], choice[1], near=True):
                if tries.remainder(better) < BETTER * tries.remainder(choices):
                    yield better


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
