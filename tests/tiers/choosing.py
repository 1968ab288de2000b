"""Which tests run by default: a covering set, those that look closest at a line, then the cheapest, up to a time."""

from __future__ import annotations

import heapq
import math
import re
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from tests.tiers.records import Place, Recorded, Records

NEAR = 3
"""So many tests, of different functions, count as those that look closest at a line."""
LINES_A_SECOND = 3.0
"""A test that only lines speak for is left out if it alone runs fewer than this for each second that it takes."""
REAL = "tests/real/"
"""Tests of engines that have to be installed: held back, since nothing may be covered by them alone."""
_WORD = re.compile(r"(?<![\w.])[a-z_][\w.]*", re.IGNORECASE)
_BAD_FILE = re.compile(r"^tests/(?:errors|bad)/|bad")


@dataclass(frozen=True, slots=True)
class Choice:
    """The tests that run by default, those that are held back for `--all`, and seconds of each kind on one core.

    lines: those that some recorded test runs, `uncovered` of them by none that runs by default.
    """

    default: tuple[str, ...]
    held_back: tuple[str, ...]
    covering: int
    seconds: float
    all_seconds: float
    lines: int
    uncovered: int


def choose(records: Records, seconds: float) -> Choice:
    """A set that covers every choice, model, command and bad file, and lines that cost little, then others up to
    `seconds`: those that look closest at a line, since a test that only runs it may not see a mistake in it, and the
    cheapest.
    """
    of_engines = [test for test in records.tests if test.test.startswith(REAL)]
    records = replace(records, tests=[test for test in records.tests if not test.test.startswith(REAL)])
    needs = _needs(records)
    chosen, paid = _covering(records, needs)
    chosen, paid = _affordable(records, needs, chosen)
    covering = len(chosen)
    spent = sum(records.tests[index].seconds for index in chosen) + sum(records.fixtures[name] for name in paid)
    cheapest = sorted(range(len(records.tests)), key=lambda index: records.tests[index].seconds)
    for index in (*_closest(records, paid), *cheapest):
        test = records.tests[index]
        price = _price(records, test, paid)
        if index not in chosen and spent + price <= seconds:
            chosen.add(index)
            paid.update(_timed(records, test))
            spent += price
    names = [[], [test.test for test in of_engines]]
    for index, test in enumerate(records.tests):
        names[index not in chosen].append(test.test)
    whole = sum(test.seconds for test in (*records.tests, *of_engines)) + sum(records.fixtures.values())
    lines, run = (
        {number for index in some for number in needs[index] if number > 0} for some in (range(len(needs)), chosen)
    )
    return Choice(
        tuple(sorted(names[0])), tuple(sorted(names[1])), covering, spent, whole, len(lines), len(lines - run)
    )


def promoted(records: Records, held_back: Container[str], seconds: float) -> list[str]:
    """The tests of a record, held back until now, that look closest at a line, for up to `seconds`."""
    tests, spent = [], 0.0
    paid = {name for test in records.tests if test.test not in held_back for name in _timed(records, test)}
    for index in _closest(records, paid):
        test = records.tests[index]
        price = _price(records, test, paid)
        if test.test in held_back and spent + price <= seconds:
            tests.append(test.test)
            paid.update(_timed(records, test))
            spent += price
    return tests


def _closest(records: Records, paid: set[str]) -> Iterator[int]:
    """Tests that look closest at some line, that is, run fewest lines of those that run it; those first that do so for
    most lines in their time.
    """
    lines = [records.of(test) for test in records.tests]
    order = sorted(range(len(lines)), key=lambda index: (len(lines[index]), records.tests[index].seconds))
    functions: dict[Place, set[str]] = defaultdict(set)
    count: dict[int, int] = defaultdict(int)
    for index in order:
        function = records.tests[index].test.partition("[")[0]
        for place in lines[index]:
            if len(functions[place]) < NEAR and function not in functions[place]:
                functions[place].add(function)
                count[index] += 1
    yield from sorted(count, key=lambda index: -count[index] / (_price(records, records.tests[index], paid) + 1e-3))


def _needs(records: Records) -> list[frozenset[int]]:
    """What each test covers, as numbers: lines from 1 up, everything else from -1 down."""
    lines: dict[object, int] = {}
    others: dict[object, int] = {}
    needs = []
    for test in records.tests:
        covers: set[object] = {kind for item in test.items for kind in _kinds(item)}
        if _BAD_FILE.search(test.test):
            covers.add(test.test)
        needs.append(
            frozenset(lines.setdefault(place, len(lines) + 1) for place in records.of(test))
            | frozenset(others.setdefault(item, -len(others) - 1) for item in covers)
        )
    return needs


def _kinds(item: tuple[str, ...]) -> list[tuple[str, ...]]:
    """What an item counts as. A number counts as some number, and a written order as each word in it: a search tries
    thousands, and none of them is a value that a file lists.
    """
    if item[0] != "value":
        return [item]
    *place, value = item
    return [(*place, word) for word in {*_WORD.findall(value)} or {"number"}]


def _covering(records: Records, needs: Sequence[frozenset[int]]) -> tuple[set[int], set[str]]:
    """Greedily the test that covers most of what is not covered yet, for its time; and the fixtures it takes."""
    chosen: set[int] = set()
    paid: set[str] = set()
    covered: set[int] = set()
    # What a test is worth only falls, so that the first whose worth still holds is the best.
    heap = [(-_worth(records, index, needs[index], paid), index) for index in range(len(needs))]
    heapq.heapify(heap)
    while heap:
        _, index = heapq.heappop(heap)
        uncovered = needs[index] - covered
        if not uncovered:
            continue
        worth = _worth(records, index, uncovered, paid)
        if heap and worth < -heap[0][0]:
            heapq.heappush(heap, (-worth, index))
            continue
        chosen.add(index)
        covered |= uncovered
        paid.update(_timed(records, records.tests[index]))
    return chosen, paid


def _affordable(records: Records, needs: Sequence[frozenset[int]], chosen: set[int]) -> tuple[set[int], set[str]]:
    """Of a covering set what is left without tests whose own lines are too few for their time, the worst first."""
    tests = records.tests
    running = Counter(number for index in chosen for number in needs[index])
    users = Counter(name for index in chosen for name in _timed(records, tests[index]))

    def lines_a_second(index: int) -> float:
        alone = [number for number in needs[index] if running[number] == 1]
        paid = {name for name, count in users.items() if count > 1}
        price = _price(records, tests[index], paid) + 1e-3
        return math.inf if any(number < 0 for number in alone) else len(alone) / price

    # What a test runs alone only grows, so that the first that is still as bad as it was is the worst.
    heap = [(lines_a_second(index), index) for index in chosen]
    heapq.heapify(heap)
    affordable = {*chosen}
    while heap and heap[0][0] < LINES_A_SECOND:
        _, index = heapq.heappop(heap)
        worth = lines_a_second(index)
        if heap and worth > heap[0][0]:
            heapq.heappush(heap, (worth, index))
        elif worth < LINES_A_SECOND:
            affordable.remove(index)
            running.subtract(needs[index])
            users.subtract(_timed(records, tests[index]))
    return affordable, {name for index in affordable for name in _timed(records, tests[index])}


def _worth(records: Records, index: int, items: Iterable[int], paid: set[str]) -> float:
    return len(frozenset(items)) / (_price(records, records.tests[index], paid) + 1e-3)


def _price(records: Records, test: Recorded, paid: set[str]) -> float:
    return test.seconds + sum(records.fixtures[name] for name in _timed(records, test) if name not in paid)


def _timed(records: Records, test: Recorded) -> list[str]:
    return [name for name in test.fixtures if name in records.fixtures]
