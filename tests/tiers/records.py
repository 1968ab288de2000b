"""What `record` and `time` wrote, read back: each test with its time, what it covers, and the fixtures it shares."""

from __future__ import annotations

import json
import sqlite3
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]

Place = tuple[str, int]
"""A file of product code, from the project's root, and a line of it."""


@dataclass(slots=True)
class Recorded:
    """A test. seconds: its own, without fixtures that others share. items: the choices, models and commands it runs."""

    test: str
    seconds: float
    items: frozenset[tuple[str, ...]]
    fixtures: tuple[str, ...]


@dataclass(slots=True)
class Records:
    """All tests, the seconds of shared fixtures, and the lines that each test and fixture runs."""

    tests: list[Recorded] = field(default_factory=list)
    fixtures: dict[str, float] = field(default_factory=dict)
    lines: dict[str, set[Place]] = field(default_factory=lambda: defaultdict(set))

    def of(self, test: Recorded) -> set[Place]:
        """The lines that a test runs, by itself and by what it shares."""
        return self.lines[test.test].union(*(self.lines[name] for name in test.fixtures))

    def running(self, place: Place) -> list[str]:
        """The tests that run a line, those first that run fewest lines."""
        running = {name for name, lines in self.lines.items() if place in lines}
        tests = [test for test in self.tests if test.test in running or not running.isdisjoint(test.fixtures)]
        return [test.test for test in sorted(tests, key=self._size)]

    def _size(self, test: Recorded) -> int:
        return len(self.lines[test.test]) + sum(len(self.lines[name]) for name in test.fixtures)


def read(folder: Path) -> Records:
    """Everything in a folder that `record` wrote, with the seconds that `time` took there.

    Exits if it was made in another checkout.
    """
    records = Records()
    for file in sorted(folder.glob("*.jsonl")):
        for line in file.read_text("utf-8").splitlines():
            entry = json.loads(line)
            if "fixture" in entry:
                before = records.fixtures.get(entry["fixture"], 0.0)
                records.fixtures[entry["fixture"]] = max(before, entry["seconds"])
            else:
                items = frozenset(map(tuple, entry["items"]))
                records.tests.append(Recorded(entry["test"], entry["seconds"], items, tuple(entry["fixtures"])))
    times = [line for file in sorted(folder.glob("*.times")) for line in file.read_text("utf-8").splitlines()]
    _take_times(records, times)
    for file in sorted(folder.glob("*.coverage")):
        for context, place in _lines(file):
            records.lines[context].add(place)
    if not records.lines:
        sys.exit(f"{folder}: no line of {ROOT} is recorded there. Read it in the checkout that recorded it.")
    return records


def _take_times(records: Records, lines: list[str]) -> None:
    """What a run without coverage took, where there was one, in place of the recorded seconds."""
    entries = [json.loads(line) for line in lines]
    tests = {entry["test"]: entry["seconds"] for entry in entries if "test" in entry}
    for test in records.tests:
        test.seconds = tests.get(test.test, test.seconds)
    timed: dict[str, float] = defaultdict(float)
    for entry in entries:
        if "fixture" in entry:
            timed[entry["fixture"]] = max(timed[entry["fixture"]], entry["seconds"])
    records.fixtures.update(timed)


def _lines(file: Path) -> Iterator[tuple[str, Place]]:
    with sqlite3.connect(file) as data:
        rows = data.execute(
            "select context.context, file.path, line_bits.numbits from line_bits "
            "join file on file.id = line_bits.file_id join context on context.id = line_bits.context_id"
        )
        for context, path, bits in rows:
            if context and (name := _inside(path)):
                for index, byte in enumerate(bits):
                    yield from ((context, (name, index * 8 + bit)) for bit in range(8) if byte >> bit & 1)


def _inside(path: str) -> str:
    """A path from the project's root; empty for one that lies elsewhere."""
    file = Path(path)
    return str(file.relative_to(ROOT)) if file.is_relative_to(ROOT) else ""
