"""Cases: phases of a schedule, and parts of phases that rules tell apart by numbers of rows, keys and queries.

A case is written `decode`, or `decode[rows :65, keys 1024:]`: the decode steps in which fewer than 65 rows go through
an op together, and in them the sequences with at least 1024 keys.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import pairwise, permutations, product
from typing import Final, NamedTuple, cast

from moeparity.plan.schedule.steps import PHASES, Phase

Case = str
"""A phase, optionally with ranges of numbers in brackets; the phase alone stands for all its steps."""

_OF_CALLS: Final = ("rows", "longest", "keys", "queries")
NUMBERS: Final = (*_OF_CALLS, "lag")
"""The numbers that cases depend on. rows: tokens that go through an op together, padding rows included. keys: how many
tokens of a sequence attention reads, from the sequence's first to its last in this step. longest: the largest number of
keys of any sequence in the step. queries: how many tokens of a sequence are in the step. lag: how many updates older
than the recipe's checkpoint the weights of the step are."""
MESSAGE: Final = ("bytes", "ranks")
"""Further numbers that rules may depend on: the bytes of the message that a rank hands to an all-reduce of the step,
and over how many ranks it is added up. They are turned into rows (`moeparity.plan.messages`): cases of a plan have
none.
"""
WRITTEN: Final = (*_OF_CALLS, *MESSAGE)
"""All numbers that a rule in a file may name."""
_EVERY: Final = (*NUMBERS, *MESSAGE)
OF_ATTENTION: Final = ("longest", "keys", "queries")
"""The numbers that only attention knows, since only it reads earlier tokens."""

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
        """Whether a number lies in the range."""
        return self.first <= number and (self.last is None or number < self.last)

    def holds_all(self, of: Range) -> bool:
        """Whether another range lies within this one."""
        return self.first <= of.first and (self.last is None or (of.last is not None and of.last <= self.last))


ALL: Final = Range(0, None)
Ranges = Mapping[str, Range]
"""The range of each number that a case restricts, by name; a number that is missing is not restricted."""


class Sizes(NamedTuple):
    """The numbers of a step that decide its case at an op; for attention those of one sequence (or of all that it
    computes in one call).
    """

    phase: Phase
    rows: int
    longest: int
    keys: int
    queries: int
    lag: int = 0


def write(phase: Phase, ranges: Ranges) -> Case:
    """A case as it is written, numbers in the order of `_EVERY`."""
    words = [f"{name} {ranges[name]}" for name in _EVERY if ranges.get(name, ALL) != ALL]
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
        if part is None or part[1] not in _EVERY or part[1] in ranges:
            raise ValueError(word.strip())
        bounds = Range(int(part[2] or 0), None if part[3] is None else int(part[3]))
        if bounds.last is not None and bounds.last <= bounds.first:
            raise ValueError(word.strip())
        ranges[part[1]] = bounds
    return cast("Phase", match[1]), ranges


def contains(outer: Case, inner: Case) -> bool:
    """Whether every step of the case `inner` is also of the case `outer`."""
    (phase, ranges), (inner_phase, numbers) = parse(outer), parse(inner)
    return phase == inner_phase and all(bounds.holds_all(numbers.get(name, ALL)) for name, bounds in ranges.items())


def cut(cases: Iterable[Case], others: Iterable[Case]) -> tuple[Case, ...]:
    """The cases cut at all bounds of `others`, so that each lies fully inside or fully outside each of them."""
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
    """The first of some cases that a step with these sizes belongs to; None where it belongs to none."""
    for case in cases:
        phase, ranges = parse(case)
        if phase == sizes.phase and all(bounds.holds(getattr(sizes, name)) for name, bounds in ranges.items()):
            return case
    return None


def merged(cases: Iterable[Case]) -> dict[Case, tuple[Case, ...]]:
    """Cases with neighbours joined into one where they only differ by a cut: each joined case, with its parts."""
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
    """Two cases joined into one, where they differ in one number only and the second begins where the first ends; else
    None.
    """
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
