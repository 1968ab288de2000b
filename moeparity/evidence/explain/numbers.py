"""A number that is solved for: the value that leaves least unexplained, then the plain ones near it."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, TypeVar

Key = TypeVar("Key", bound=Hashable)
Answer = TypeVar("Answer")
Remainder = Callable[[float], float]
"""What a value of the number leaves unexplained; infinite where it cannot be."""
Asking = Generator[Sequence[float], Sequence[float], Answer]
"""Asks for what some numbers leave unexplained, is sent it, and comes to an answer."""
Search = Asking[list[float]]
Point = tuple[float, float]
"""A number, and what it leaves unexplained."""

DECADES: Final = range(-12, 10, 2)
"""Powers of ten that are tried first."""
NEGATIVE: Final = (-10.0, -1.0, -0.1, -0.01)
FIRST_NUMBERS: Final = (0.0, *NEGATIVE, *(10.0**exponent for exponent in DECADES))
"""Numbers that are tried first wherever any is allowed, beside half and twice the one that is there."""
AROUND: Final = 8
"""Doubles of a first value that are looked at, at most."""
STEPS: Final = 16
"""How often the interval with the least remainder is made smaller, at most."""
PATIENCE: Final = 10
"""After so many steps in a row without a gain the interval is left as it is; where none is in sight, after fewer."""
STILL: Final = 3
GAIN: Final = 0.99
"""What leaves more than so much of what was left is no gain: choices that are still missing make noise of that size."""
CLOSE: Final = 1e-3
"""A step that is so much smaller than the interval tells nothing new."""
PRECISE: Final = 1e-4
"""How narrow the interval becomes, as a share of the number."""
FAR: Final = 4.0
"""Numbers whose ratio is greater are halved in powers."""
PLAIN: Final = 2
"""Digits of a plain number."""
DENOMINATOR: Final = 16
"""The greatest denominator of ratios of whole numbers that are looked at."""
RATIO_NEAR: Final = 1e-3
"""How far from a number, as a share of it, a ratio may lie to be looked at in its place."""
READ_OFF: Final = 0.01
"""How far off a number may be that is read off, as a share of it."""
FEW: Final = 4
"""So many plain numbers are tried beside it."""
READ_OFF_TRIALS: Final = FEW + 3
"""What looking at these takes, in trials."""
DIGITS: Final = (1, 2, 3, 4)
"""Significant digits of plain decimals."""
BITS: Final = range(1, 9)
"""Significant bits of plain binary numbers: as many as a bf16 holds."""
PLAIN_BITS: Final = 4
"""Bits of a number that is as plain as a decimal of `PLAIN` digits, such as 1.125."""
MOST: Final = 10
"""Decimals of one length that are looked at."""
HALVINGS: Final = 18
"""How closely the ends of an interval are looked for."""


def solve(remainder: Remainder, at: float, *, near: bool = False, dense: bool = False) -> list[float]:
    """What a `search` comes to, if `remainder` says what each number leaves."""
    searches = {None: search(at, near=near, dense=dense)}
    return solve_together(searches, lambda numbers_of: {None: [remainder(x) for x in numbers_of[None]]})[None]


def solve_together(
    searches: Mapping[Key, Search], remainders: Callable[[Mapping[Key, Sequence[float]]], Mapping[Key, Sequence[float]]]
) -> dict[Key, list[float]]:
    """What several searches come to. remainders: what the numbers leave for which the searches ask at the same time."""
    answers: Mapping[Key, Sequence[float] | None] = dict.fromkeys(searches)
    candidates: dict[Key, list[float]] = {}
    while answers:
        numbers_of: dict[Key, Sequence[float]] = {}
        for key, answer in answers.items():
            try:
                numbers_of[key] = next(searches[key]) if answer is None else searches[key].send(answer)
            except StopIteration as end:
                candidates[key] = end.value
        answers = remainders(numbers_of) if numbers_of else {}
    return {key: candidates[key] for key in searches}


def search(at: float, *, near: bool = False, dense: bool = False) -> Search:
    """Asks what numbers leave unexplained, is sent it, and returns candidate values of a number, the plainest last: the
    number that leaves least, then plain decimals and powers of two beside it.

    What is left unexplained is measured at powers of ten. With `dense` it is measured at eight points of each decade,
    since some numbers are found only from close by. If a first value `near` is given, the measurement goes from half to
    twice that value, and on for as long as less is left. Then the interval around the least is narrowed. Returns
    nothing if the number makes no difference.
    """
    if near:
        remainders = yield from _around(at)
    else:
        points = _grid(at, dense=dense)
        remainders = dict(zip(points, (yield points), strict=True))
    finite = {x: r for x, r in remainders.items() if math.isfinite(r)}
    if len(set(finite.values())) < 2:
        return []
    order = sorted(finite)
    best = min(order, key=lambda x: (finite[x], abs(x - at)))
    place = order.index(best)
    low, high = order[max(place - 1, 0)], order[min(place + 1, len(order) - 1)]
    estimate, low, high = yield from _narrowed((low, finite[low]), (best, finite[best]), (high, finite[high]))
    return [estimate, *sorted(plain(estimate, low, high), key=lambda x: (-figures(x), abs(x - estimate)))]


def _around(at: float) -> Asking[dict[float, float]]:
    """What a first value leaves, half and twice it, and the doubles beyond the better of these for as long as they
    leave less.
    """
    half, double, middle = yield (at * 0.5, at * 2.0, at)
    remainders = {at * 0.5: half, at * 2.0: double, at: middle}
    factor, beyond, before = (0.5, half, middle) if half <= double else (2.0, double, middle)
    point = at * factor
    for _ in range(AROUND - 2):
        if not beyond < before:
            break
        point, before = point * factor, beyond
        (beyond,) = yield (point,)
        remainders[point] = beyond
    return remainders


def _grid(at: float, *, dense: bool) -> list[float]:
    if dense:
        return sorted({at, *(10 ** (exponent / 8) for exponent in range(16, 73))})
    return sorted({at / 2, at, at * 2, *FIRST_NUMBERS})


def _narrowed(low_point: Point, best_point: Point, high_point: Point) -> Asking[tuple[float, float, float]]:
    """The number that leaves least between two points, and the interval around it. If several leave nothing, it is the
    first one met.

    What is left is a sum of squares and so nearly a parabola in the number. The vertex of that parabola is tried. The
    middle of the longer part is tried instead if the vertex lies outside, is hardly another number, or if the last step
    cut off little. If the ends are far apart, the search goes by powers.
    """
    (low, at_low), (best, least), (high, at_high) = low_point, best_point, high_point
    width, idle = math.inf, 0
    for _ in range(STEPS):
        if least == 0 or not low < best < high or high - low < PRECISE * abs(best):
            break
        is_far = low * high > 0 and max(low / high, high / low) > FAR
        scale = _Powers(math.copysign(1.0, best)) if is_far else _Plain()
        a, b, c = (scale.of(x) for x in (low, best, high))
        x, in_sight = _vertex((a, at_low), (b, least), (c, at_high))
        if idle >= (STILL if in_sight > GAIN * least and not is_far else PATIENCE):
            break
        if not min(a, c) < x < max(a, c) or abs(x - b) < CLOSE * abs(c - a) or high - low > width / 2:
            x = (b + c) / 2 if abs(c - b) > abs(b - a) else (a + b) / 2
        x, width = scale.back(x), high - low
        (r,) = yield (x,)
        idle = 0 if r < GAIN * least else idle + 1
        if r < least:
            low, at_low, high, at_high = (low, at_low, best, least) if x < best else (best, least, high, at_high)
            best, least = x, r
        elif x < best:
            low, at_low = x, r
        else:
            high, at_high = x, r
    return best, low, high


def read_off(remainder: Remainder, at: float) -> list[float]:
    """Plain numbers where what is left would be least if the values went with the number in a straight line: far
    fewer are looked at than `solve` does.
    """
    points = [(x, remainder(x)) for x in (at / 2, at, at * 2)]
    x, _ = _vertex(*points)
    near = plain(x, x * (1 - READ_OFF), x * (1 + READ_OFF)) | {x}
    return sorted((y for y in near if figures(y) <= PLAIN), key=lambda y: (abs(y - x), y))[:FEW]


class _Plain:
    """Numbers as they are."""

    def of(self, x: float) -> float:
        return x

    def back(self, x: float) -> float:
        return x


@dataclass(frozen=True, slots=True)
class _Powers(_Plain):
    """Numbers of one sign by their logarithms."""

    sign: float

    def of(self, x: float) -> float:
        return math.log(self.sign * x)

    def back(self, x: float) -> float:
        return self.sign * math.exp(x)


def _vertex(a: tuple[float, float], b: tuple[float, float], c: tuple[float, float]) -> tuple[float, float]:
    """Where the parabola through three points turns, and how low it is there; NaN where they lie on a line."""
    left, right = (b[0] - a[0]) * (b[1] - c[1]), (b[0] - c[0]) * (b[1] - a[1])
    if left == right:
        return math.nan, math.nan
    x = b[0] - ((b[0] - a[0]) * left - (b[0] - c[0]) * right) / (2 * (left - right))
    bend = ((c[1] - b[1]) / (c[0] - b[0]) - (b[1] - a[1]) / (b[0] - a[0])) / (c[0] - a[0])
    return x, b[1] - bend * (x - b[0]) ** 2


def plain(x: float, low: float, high: float) -> set[float]:
    """Plain decimals and binary numbers next to x on both sides. Those of more than two digits, or of more than
    `PLAIN_BITS` bits, are given only inside [low, high]. A ratio of whole numbers is given if it is hardly another
    number than x.
    """
    if x == 0 or not math.isfinite(x):
        return set()
    sign, size = math.copysign(1.0, x), abs(x)
    exponent, power = math.floor(math.log10(size)), math.floor(math.log2(size))
    numbers = set()
    for digits_shown in DIGITS:
        unit = digits_shown - 1 - exponent
        # Written and read again: a decimal is what its text says, not a product with a rounded power of ten.
        beside = {float(f"{rounded:.0f}e{-unit}") for rounded in _both_sides(size * 10.0**unit)}
        numbers |= {sign * y for y in beside if digits_shown <= PLAIN or low <= sign * y <= high}
    for bits in BITS:
        beside = {math.ldexp(rounded, power + 1 - bits) for rounded in _both_sides(math.ldexp(size, bits - 1 - power))}
        numbers |= {sign * y for y in beside if bits <= PLAIN_BITS or low <= sign * y <= high}
    ratio = sign * float(Fraction(size).limit_denominator(DENOMINATOR))
    return numbers.union([ratio] if abs(ratio - x) <= RATIO_NEAR * size else []) - {x}


def _both_sides(x: float) -> set[int]:
    return {math.floor(x), math.ceil(x)} - {0}


def alike(exact: Callable[[float], bool], x: float) -> Iterator[float]:
    """Other numbers that may be as `exact` as x: the ends of the interval around x in which numbers are exact (searched
    as far as half and twice x), the number inside it with the fewest digits, and a power of two inside it.
    """
    if x == 0:
        return
    low, high = sorted(_end(exact, x, factor) for factor in (0.5, 2.0))
    yield from (low, high)
    powers = (math.copysign(math.ldexp(1.0, math.frexp(x)[1] + by), x) for by in (-1, 0))
    yield from (power for power in powers if low <= power <= high)
    yield from shortest(low, high)


def _end(exact: Callable[[float], bool], inside: float, factor: float) -> float:
    """The last number from `inside` on that is exact, up to `factor` times it, as far as halving finds it."""
    outside = inside * factor
    if exact(outside):
        return outside
    for _ in range(HALVINGS):
        middle = (inside + outside) / 2
        inside, outside = (middle, outside) if exact(middle) else (inside, middle)
    return inside


def shortest(low: float, high: float) -> list[float]:
    """The decimals in [low, high] with the fewest digits, those in the middle first; both of one sign, or equal."""
    if low == high:
        return [low]
    sign, (small, large) = math.copysign(1.0, low + high), sorted((abs(low), abs(high)))
    for unit in range(-math.floor(math.log10(large)), 400):
        first, last = math.ceil(small * 10.0**unit), math.floor(large * 10.0**unit)
        decimals = [float(f"{y}e{-unit}") for y in range(first, min(last, first + MOST) + 1)]
        inside = [sign * y for y in decimals if small <= y <= large]
        if inside:
            return sorted(inside, key=lambda y: abs(y - (low + high) / 2))
    return []


def figures(x: float) -> int:
    """How long a number is to write: its number of digits. A power of two counts no more than a plain decimal; so does
    a number of few bits that is written with few digits, such as 1.125.
    """
    numerator = abs(x).as_integer_ratio()[0] if math.isfinite(x) else 0
    bits = (numerator // (numerator & -numerator)).bit_length() if numerator else 1
    is_plain = bits == 1 or (bits <= PLAIN_BITS and digits(x) <= DIGITS[-1])
    return min(digits(x), PLAIN) if is_plain else digits(x)


def digits(x: float) -> int:
    """Significant decimal digits of a number as it would be written."""
    return len(repr(float(x)).partition("e")[0].replace(".", "").replace("-", "").strip("0"))
