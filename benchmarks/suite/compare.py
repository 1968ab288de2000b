"""Two suites matched test by test: the same node id, else the same function and parameters in another file."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """What one commit's tests took: CPU seconds of all processes, and by node id; when they began, and what pytest said
    at their end.
    """

    commit: str
    begun: str
    outcome: str
    seconds: float
    tests: Mapping[str, float]


def matched(before: Iterable[str], after: Iterable[str]) -> dict[str, str]:
    """Tests that both suites have, from the node id before to the one after; where several files have a test of one
    name, only those that stayed where they were.
    """
    old, new = set(before), set(after)
    pairs = {test: test for test in old & new}
    homeless, arrived = _by_name(old - new), _by_name(new - old)
    for name, tests in homeless.items():
        if len(tests) == 1 and len(arrived.get(name, ())) == 1:
            pairs[tests[0]] = arrived[name][0]
    return pairs


def _by_name(tests: Iterable[str]) -> dict[str, list[str]]:
    tests_of: dict[str, list[str]] = defaultdict(list)
    for test in tests:
        tests_of[test.partition("::")[2]].append(test)
    return tests_of


def table(before: Suite, after: Suite) -> str:
    """Totals, their ratio, and seconds by folder of tests, as Markdown."""
    pairs = matched(before.tests, after.tests)
    old, new = sum(before.tests[test] for test in pairs), sum(after.tests[test] for test in pairs.values())
    moved = sum(test != partner for test, partner in pairs.items())
    lines = [
        *(f"{suite.commit} ({suite.begun}): {suite.outcome}" for suite in (before, after)),
        "",
        f"| CPU seconds | tests | {before.commit} | {after.commit} | ratio |",
        "| --- | --- | --- | --- | --- |",
        _row("whole suite", f"{len(before.tests)} / {len(after.tests)}", before.seconds, after.seconds),
        _row(f"tests of both ({moved} in another file)", str(len(pairs)), old, new),
        _row("only before", str(len(before.tests) - len(pairs)), sum(before.tests.values()) - old, 0.0),
        _row("only after", str(len(after.tests) - len(pairs)), 0.0, sum(after.tests.values()) - new),
        _row(
            "collection, start and end", "", *(suite.seconds - sum(suite.tests.values()) for suite in (before, after))
        ),
    ]
    folders = _by_folder(before.tests), _by_folder(after.tests)
    for folder in sorted({*folders[0], *folders[1]}):
        (tests, seconds), (tests_after, seconds_after) = (sums.get(folder, (0, 0.0)) for sums in folders)
        lines.append(_row(folder, f"{tests} / {tests_after}", seconds, seconds_after))
    return "\n".join(lines)


def _row(title: str, tests: str, before: float, after: float) -> str:
    ratio = f"{after / before:.2f}" if before and after else ""
    return f"| {title} | {tests} | {before:.1f} | {after:.1f} | {ratio} |"


def _by_folder(tests: Mapping[str, float]) -> dict[str, tuple[int, float]]:
    """Number and seconds of the tests of each folder below `tests`; of files that lie there, together."""
    sums: dict[str, tuple[int, float]] = {}
    for test, seconds in tests.items():
        first = test.partition("::")[0].split("/")[1]
        folder = "tests/*.py" if first.endswith(".py") else f"tests/{first}"
        number, so_far = sums.get(folder, (0, 0.0))
        sums[folder] = number + 1, so_far + seconds
    return sums
