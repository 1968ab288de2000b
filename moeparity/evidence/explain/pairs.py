"""Two numbers that make up for each other are solved for together. Solved for one by one, each would follow the other's
mistake.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Final

from moeparity.evidence.explain.numbers import figures, plain

Remainder2 = Callable[[float, float], float]
"""What two numbers leave unexplained together; infinite where they cannot be."""

ROUNDS: Final = 6
"""How often the least is looked for anew, at most."""
FIRST_STEP: Final = 0.125
LAST_STEP: Final = 2.0**-8
"""How far around a pair is looked at first and last, as a share of each number."""
GAIN: Final = 0.95
"""Where a first round leaves no less than so much, the numbers do not make up for each other."""
GREATEST: Final = 2.0
"""How far a round may go, in steps, as a share of each number."""
DIGITS: Final = 2
"""Digits of plain numbers that are tried in each other's company."""
PLAIN_PAIRS: Final = 9
"""Of so many plain pairs it is seen what they leave."""

Point = tuple[float, float]


def solve_pair(remainder: Remainder2, first: float, second: float) -> Iterator[Point]:
    """Pairs of numbers that leave less than the first pair does, the plain ones last. Neither number is 0.

    What is left unexplained is a sum of squares and so nearly a quadric in both numbers. Its minimum is worked out from
    six points around a pair. The search goes there and works it out anew with smaller steps.
    """
    best, step = (first, second), FIRST_STEP
    least = start = remainder(*best)
    for _ in range(ROUNDS):
        if least == 0 or not math.isfinite(least) or step < LAST_STEP:
            break
        points = _around(remainder, best, least, step)
        to = _turn(best, least, points, step)
        candidates = dict(points) if to is None else {**dict(points), to: remainder(*to)}
        nearest = min(candidates, key=lambda point: candidates[point])
        gain, step = candidates[nearest] / least, step / 2 if nearest == to or candidates[nearest] >= least else step
        if gain < 1:
            best, least = nearest, candidates[nearest]
        if gain > GAIN and least > GAIN * start:
            return
    if least < start:
        yield best
        yield from _plain_pairs(*best)


def _around(remainder: Remainder2, at: Point, least: float, step: float) -> dict[Point, float]:
    """What pairs beside a pair leave."""
    a, b = at
    up, right = a * (1 + step), b * (1 + step)
    points = ((up, b), (a * (1 - step), b), (a, right), (a, b * (1 - step)), (up, right))
    return {point: remainder(*point) for point in points}


def _turn(at: Point, least: float, points: dict[Point, float], step: float) -> Point | None:
    """Where the quadric through six points has its least, no further than `GREATEST`; None where it has none."""
    up, down, right, left, corner = points.values()
    if not all(map(math.isfinite, points.values())):
        return None
    slope_a, slope_b = (up - down) / 2, (right - left) / 2
    bend_a, bend_b, twist = up + down - 2 * least, right + left - 2 * least, corner - up - right + least
    spread = bend_a * bend_b - twist * twist
    if bend_a <= 0 or bend_b <= 0 or spread <= 0:
        return None
    by_a = (twist * slope_b - bend_b * slope_a) / spread
    by_b = (twist * slope_a - bend_a * slope_b) / spread
    shares = (max(-0.5, min(by * step, GREATEST)) for by in (by_a, by_b))
    first, second = (x * (1 + share) for x, share in zip(at, shares, strict=True))
    return first, second


def _plain_pairs(first: float, second: float) -> Iterator[Point]:
    """Pairs of plain numbers next to both, those nearest to them first."""
    sides = [sorted({x, *plain(x, x / 2, x * 2)}, key=lambda y: abs(y - x)) for x in (first, second)]
    short = [[y for y in side if figures(y) <= DIGITS] for side in sides]
    pairs = [(a, b) for a in short[0] for b in short[1]]
    yield from sorted(pairs, key=lambda pair: abs(pair[0] / first - 1) + abs(pair[1] / second - 1))[:PLAIN_PAIRS]
