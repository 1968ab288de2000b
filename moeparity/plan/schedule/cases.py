"""Cases: phases of a schedule, and the parts of them that rules tell apart by numbers of rows, keys and queries.

A case is written `decode`, or `decode[rows :65, keys 1024:]`: steps of this phase in which fewer than 65 rows go
through an op together, and sequences of which it reads 1024 keys and more.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import pairwise, permutations, product
from typing import Final, NamedTuple, cast

from moeparity.plan.schedule.steps import PHASES, Phase

Case = str
"""A phase, with the numbers that are meant in brackets behind it; the phase alone stands for all its steps."""

NUMBERS: Final = ("rows", "longest", "keys", "queries")
"""What cases go by. rows: tokens that go through an op together, padding rows included. keys: what attention reads of a
sequence, from its first token to its last of the step; longest: the most that it reads of any sequence of the step.
queries: tokens of a sequence in the step."""
MESSAGE: Final = ("bytes", "ranks")
"""What rules may go by beside: bytes of the message that a rank hands to an all-reduce of the step, and over how many
ranks it is added. On one model these are numbers of rows (`moeparity.plan.messages`), so no case of a plan has them."""
WRITTEN: Final = (*NUMBERS, *MESSAGE)
"""What a case may be written with."""
OF_ATTENTION: Final = ("longest", "keys", "queries")
"""Those that only an op that reads earlier tokens knows."""

_CASE = re.compile(r"([a-z]+)(?:\[([^\[\]]*)\])?")
_RANGE = re.compile(r"\s*([a-z]+)\s+(\d{1,9})?:(\d{1,9})?\s*")


class Range(NamedTuple):
    """Whole numbers from `first` to `last` - 1, or (None) all from `first` on."""

    first: int
    last: int | None

    def __str__(self) -> str:
        """As a slice: `:65`, `1024:`."""
        return f"{self.first or ''}:{'' if self.last is None else self.last}"

    def holds(self, number: int) -> bool:
        """Whether it is one of them."""
        return self.first <= number and (self.last is None or number < self.last)

    def holds_all(self, of: Range) -> bool:
        """Whether all of another are among them."""
        return self.first <= of.first and (self.last is None or (of.last is not None and of.last <= self.last))


ALL: Final = Range(0, None)
Ranges = Mapping[str, Range]
"""By name of a number, those that are meant; a number without any goes by none."""


class Sizes(NamedTuple):
    """What of a step a case goes by: at an op, and of attention at one sequence (or those that it takes at once)."""

    phase: Phase
    rows: int
    longest: int
    keys: int
    queries: int


def write(phase: Phase, ranges: Ranges) -> Case:
    """A case as it is written, numbers in the order of `WRITTEN`."""
    words = [f"{name} {ranges[name]}" for name in WRITTEN if ranges.get(name, ALL) != ALL]
    return f"{phase}[{', '.join(words)}]" if words else phase


@lru_cache(maxsize=4096)
def parse(case: Case) -> tuple[Phase, Ranges]:
    """The phase and the numbers of a case. Raises ValueError, saying what is wrong with it."""
    match = _CASE.fullmatch(case.strip())
    if match is None or match[1] not in PHASES:
        raise ValueError(match[1] if match else case)
    ranges: dict[str, Range] = {}
    for word in match[2].split(",") if match[2] is not None else ():
        part = _RANGE.fullmatch(word)
        if part is None or part[1] not in WRITTEN or part[1] in ranges:
            raise ValueError(word.strip())
        bounds = Range(int(part[2] or 0), None if part[3] is None else int(part[3]))
        if bounds.last is not None and bounds.last <= bounds.first:
            raise ValueError(word.strip())
        ranges[part[1]] = bounds
    return cast("Phase", match[1]), ranges


def contains(outer: Case, inner: Case) -> bool:
    """Whether every step of one case is of another."""
    (phase, ranges), (inner_phase, numbers) = parse(outer), parse(inner)
    return phase == inner_phase and all(bounds.holds_all(numbers.get(name, ALL)) for name, bounds in ranges.items())


def cut(cases: Iterable[Case], others: Iterable[Case]) -> tuple[Case, ...]:
    """The cases cut wherever one of `others` begins or ends, so that each lies inside of such a one or outside."""
    parsed = [parse(cutting_case) for cutting_case in others]
    return tuple(dict.fromkeys(part for case in cases for part in _cut(case, parsed)))


def _cut(case: Case, others: Iterable[tuple[Phase, Ranges]]) -> Iterator[Case]:
    phase, own_ranges = parse(case)
    there = [ranges for cutting_phase, ranges in others if cutting_phase == phase]
    pieces = [list(_pieces(own_ranges.get(name, ALL), [r[name] for r in there if name in r])) for name in NUMBERS]
    for ranges in product(*pieces):
        yield write(phase, dict(zip(NUMBERS, ranges, strict=True)))


def _pieces(whole: Range, others: Iterable[Range]) -> Iterator[Range]:
    edges = {edge for cut_bounds in others for edge in cut_bounds if edge is not None}
    inner = sorted(edge for edge in edges if edge > whole.first and (whole.last is None or edge < whole.last))
    for first, last in pairwise([whole.first, *inner, None]):
        assert first is not None, "only the last may be"
        yield Range(first, whole.last if last is None else last)


def case_of(cases: Iterable[Case], sizes: Sizes) -> Case | None:
    """The first of some cases that a step's sizes are of; None where they are of none."""
    for case in cases:
        phase, ranges = parse(case)
        if phase == sizes.phase and all(bounds.holds(getattr(sizes, name)) for name, bounds in ranges.items()):
            return case
    return None


def merged(cases: Iterable[Case]) -> dict[Case, tuple[Case, ...]]:
    """Cases, those put together that are one without a cut between them: each such case, and what it consists of."""
    parts: dict[Case, tuple[Case, ...]] = {case: (case,) for case in cases}
    while True:
        pair = next(((a, b, joint) for a, b in permutations(parts, 2) if (joint := _joined(a, b)) is not None), None)
        if pair is None:
            return parts
        first, second, joint = pair
        joined = parts[first] + parts.pop(second)
        parts = {
            joint if case == first else case: joined if case == first else pieces for case, pieces in parts.items()
        }


def _joined(first: Case, second: Case) -> Case | None:
    """Two cases as one where the second begins, in one of the numbers, at what the first ends below."""
    (phase, ranges), (second_phase, others) = parse(first), parse(second)
    unlike = [name for name in NUMBERS if ranges.get(name, ALL) != others.get(name, ALL)]
    if phase != second_phase or len(unlike) != 1:
        return None
    before, after = (of.get(unlike[0], ALL) for of in (ranges, others))
    return None if before.last != after.first else write(phase, {**ranges, unlike[0]: Range(before.first, after.last)})


def described(cases: Iterable[Case]) -> str:
    """Cases in words: `decode, verify`, `all phases[rows :65]`."""
    by_numbers: dict[str, list[Case]] = {}
    for case in merged(cases):
        by_numbers.setdefault(case.removeprefix(parse(case)[0]), []).append(case)
    of_all = {numbers for numbers, of in by_numbers.items() if len(of) == len(PHASES)}
    words = {numbers: f"all phases{numbers}" for numbers in of_all}
    return ", ".join(words.get(numbers, ", ".join(of)) for numbers, of in by_numbers.items())
