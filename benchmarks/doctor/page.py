"""The page that the run writes, from the lines that it kept. No figure is written by hand."""

from __future__ import annotations

import os
import platform
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from scipy.stats import binomtest

from benchmarks.doctor.case import KINDS, WRONG, verdict
from moeparity.inputs.machine import cpu_name

WORDS = {
    "clean": "nothing",
    "stale": "a part of the weights stale",
    "mistake": "a mistake in the model code that a file lists",
    "number": "a number other than the configuration's",
    "tokens": "tokens left off or twice, packed without a mask, moved, truncated, keys and values of older weights, a "
    "mistake in decoding alone",
    "two": "stale weights and a mistake at once, at one side or at both",
    "unlisted": "a fault that no hypothesis is",
}
_LEVEL = 0.95


def page(cases: Sequence[Mapping[str, Any]], seed: int) -> str:
    """The page."""
    return "\n".join(_lines(cases, seed)) + "\n"


def _lines(cases: Sequence[Mapping[str, Any]], seed: int) -> Iterator[str]:
    wrong = sum(verdict(case) == WRONG for case in cases)
    day = f"{datetime.now(UTC):%Y-%m-%d}, on {cpu_name()}, {os.cpu_count()} cores, one thread"
    versions = f"torch {version('torch')}, transformers {version('transformers')}, Python {platform.python_version()}"
    yield "# The doctor, tried on planted faults\n"
    yield f"Written by `python -m scripts.pages doctor` on {day}; {versions}.\n"
    yield (
        f"{len(cases)} runs, seed {seed}, drawn after the method was fixed; "
        f"{statistics.median(case['seconds'] for case in cases):.0f} s for an examination in the middle. Wrong names: "
        f"{_of(wrong, len(cases))}. In brackets: between which rates that lies at {_LEVEL:.0%} (Clopper and Pearson).\n"
    )
    yield (
        "In each run two models of transformers score 240 to 992 tokens, in batches and with attention kernels of "
        "their own. They are two layers of the shipped checkpoint. The earlier checkpoint has weights 5 to 20 % off. "
        "A name is right with its side, and a number with an error of at most 5 %. Where no hypothesis is the fault, "
        "it is right to give no name, be it undecided, not explained or noise.\n"
    )
    yield "| planted | runs | right | wrong name | else |"
    yield "|---|---|---|---|---|"
    for kind, words in WORDS.items():
        yield _row(words, [case for case in cases if case["kind"] == kind])
    yield "\n## What was not named right\n"
    yield "| planted | size | answer | explains most |"
    yield "|---|---|---|---|"
    for case in cases:
        if verdict(case) not in _RIGHT[case["kind"]]:
            planted = " and ".join(case["truth"]) or "nothing"
            value = "" if case["value"] is None else f" ({case['value']:g})"
            size = f"{case['size'] / case['legal']:.1f} times noise"
            yield f"| {planted}{value} | {size} | {verdict(case)} | {case['first']}, {case['share']:.0%} |"


_RIGHT: Mapping[str, frozenset[str]] = {kind: frozenset({"right", "named from the log"}) for kind in KINDS} | {
    "clean": frozenset({"noise", "as configured"}),
    "unlisted": frozenset({"not explained", "undecided", "noise"}),
}
"""Which verdicts are right; what no hypothesis is must not be named."""


def _row(words: str, cases: Sequence[Mapping[str, Any]]) -> str:
    counts = Counter(verdict(case) for case in cases)
    right = sum(counts[name] for name in _RIGHT[cases[0]["kind"]]) if cases else 0
    others = {name: count for name, count in counts.items() if name != WRONG and name not in _RIGHT[cases[0]["kind"]]}
    rest = ", ".join(f"{count} {name}" for name, count in others.items()) or "-"
    return f"| {words} | {len(cases)} | {_of(right, len(cases))} | {counts[WRONG]} | {rest} |"


def _of(events: int, trials: int) -> str:
    """`3 of 5 [15%, 95%]`; `-` without a trial."""
    if not trials:
        return "-"
    interval = binomtest(events, trials).proportion_ci(_LEVEL, method="exact")
    return f"{events} of {trials} [{interval.low:.0%}, {interval.high:.0%}]"
