"""Which tests run by default: a covering set, then whatever is cheap, up to a time."""

from __future__ import annotations

import heapq
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tests.tiers.records import Recorded, Records

_BAD_FILE = re.compile(r"^tests/(?:errors|bad)/|bad")


@dataclass(frozen=True, slots=True)
class Choice:
    """The tests that run by default, those that are held back for `--all`, and seconds of each kind on one core."""

    default: tuple[str, ...]
    held_back: tuple[str, ...]
    covering: int
    seconds: float
    all_seconds: float


def choose(records: Records, seconds: float) -> Choice:
    """A set that covers every line, choice, model, command and bad file, then the cheapest others up to `seconds`."""
    needs = _needs(records)
    chosen, paid = _covering(records, needs)
    covering = len(chosen)
    spent = sum(records.tests[index].seconds for index in chosen) + sum(records.fixtures[name] for name in paid)
    for index in sorted(range(len(records.tests)), key=lambda index: records.tests[index].seconds):
        test = records.tests[index]
        price = _price(records, test, paid)
        if index not in chosen and spent + price <= seconds:
            chosen.add(index)
            paid.update(_timed(records, test))
            spent += price
    names = [[], []]  # type: list[list[str]]
    for index, test in enumerate(records.tests):
        names[index not in chosen].append(test.test)
    whole = sum(test.seconds for test in records.tests) + sum(records.fixtures.values())
    return Choice(tuple(sorted(names[0])), tuple(sorted(names[1])), covering, spent, whole)


def _needs(records: Records) -> list[frozenset[int]]:
    """What each test covers, as numbers."""
    numbers: dict[object, int] = {}
    needs = []
    for test in records.tests:
        covers: set[object] = {*records.of(test), *test.items}
        if _BAD_FILE.search(test.test):
            covers.add(test.test)
        needs.append(frozenset(numbers.setdefault(item, len(numbers)) for item in covers))
    return needs


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


def _worth(records: Records, index: int, items: Iterable[int], paid: set[str]) -> float:
    return len(frozenset(items)) / (_price(records, records.tests[index], paid) + 1e-3)


def _price(records: Records, test: Recorded, paid: set[str]) -> float:
    return test.seconds + sum(records.fixtures[name] for name in _timed(records, test) if name not in paid)


def _timed(records: Records, test: Recorded) -> list[str]:
    return [name for name in test.fixtures if name in records.fixtures]


def written(choice: Choice, about: str) -> str:
    """The file of the tests that are held back: by file, the tests of it."""
    by_file: dict[str, list[str]] = {}
    for test in choice.held_back:
        file, _, name = test.partition("::")
        by_file.setdefault(file, []).append(name)
    return json.dumps({"about": about, "tests": by_file}, indent=1, ensure_ascii=False) + "\n"
