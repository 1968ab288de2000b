"""The page that the runs write, from the lines that they kept. No figure is written by hand."""

from __future__ import annotations

import math
import os
import platform
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from scipy.stats import binomtest

from benchmarks.doctor.case import WRONG, verdict
from benchmarks.doctor.coverage import DRAWS, HEAD
from benchmarks.doctor.drawn import CLASSES, CLEAN, PLACES, TWO, UNLISTED
from benchmarks.doctor.models import ARCHITECTURES
from moeparity.inputs.machine import cpu_name

WORDS = {
    "stale layer": "a layer, a kind of node or an end stale",
    "stale part": "a node or an expert stale",
    PLACES: "weights at another layer's or expert's place",
    "router": "a mistake in routers",
    "code": "a mistake in the rest of the model code",
    "number": "a number other than the configuration's",
    "sampling": "truncation, a temperature in the head, values one place late",
    "tokens": "tokens left off or twice, packing without a mask",
    "positions": "positions of the response moved",
    "steps": "keys and values of older weights, a mistake in decoding alone",
    "routes": "routes replayed at another place, experts that are full",
    TWO: "stale weights and a mistake in the code at once",
    UNLISTED: "a fault that no hypothesis is",
    CLEAN: "nothing",
}
_LEVEL = 0.95
Cases = Sequence[Mapping[str, Any]]


def page(cases: Cases, seed: int, legal: Sequence[str]) -> str:
    """The page; `legal` are the rows of the table of coverage."""
    parts = [*_lines(cases, seed), "\n## How often a legal difference is called a bug\n", _LEGAL, *HEAD, *legal]
    return "\n".join(parts) + "\n"


def _lines(cases: Cases, seed: int) -> Iterator[str]:
    day = f"{datetime.now(UTC):%Y-%m-%d}, on {cpu_name()}, {os.cpu_count()} cores, one thread"
    versions = f"torch {version('torch')}, transformers {version('transformers')}, Python {platform.python_version()}"
    commits = Counter(case["commit"] for case in cases)
    of_commits = ", ".join(f"{name} ({count})" for name, count in commits.items())
    yield "# The doctor, tried on planted faults\n"
    yield f"Written by `python -m scripts.pages doctor` on {day}; {versions}.\n"
    yield (
        f"{len(cases)} runs, seed {seed}, drawn after the method was fixed; runs by commit: {of_commits}. "
        f"{statistics.median(case['seconds'] for case in cases):.0f} s for an examination in the middle. In brackets: "
        f"between which rates a rate lies at {_LEVEL:.0%} (Clopper and Pearson).\n"
    )
    yield from _summary(cases)
    yield _READING
    yield "| planted | runs | right | wrong name | else |"
    yield "|---|---|---|---|---|"
    for kind in (*CLASSES, CLEAN):
        yield _row(WORDS[kind], [case for case in cases if case["kind"] == kind])
    yield from _table("model", {each.name: [c for c in cases if c["model"] == each.name] for each in ARCHITECTURES})
    shapes = sorted({tuple(case["shape"]) for case in cases}, key=math.prod)
    yield from _table(
        "sequences x tokens", {f"{n} x {t}": [c for c in cases if c["shape"] == [n, t]] for n, t in shapes}
    )
    yield "\n## What was not named right\n"
    yield "| run | model | planted | side | tokens | size | answer | explains most |"
    yield "|---|---|---|---|---|---|---|---|"
    yield from (_shown(case) for case in cases if not is_right(case))


_READING = f"""\
In each run two models of transformers score the same tokens, each in batches, with padding, with kernels of attention
and of the experts and on threads of its own. The first model is two layers of the shipped checkpoint, which is trained;
its tokens are texts, and what it drew itself where these are too few or too short. Those of
{", ".join(each.name for each in ARCHITECTURES[1:])} have random weights, two layers each, and random tokens. The doctor
is given the log of both sides, the checkpoint and the one before the update, whose weights are 5 to 20 % off, and in
every fourth run the routes of the log. All faults are planted in transformers' programs, none is simulated here.

A name is right with its side and, where there is one, its number, with an error of at most {0.05:.0%}. Where no
hypothesis is the fault, it is right to give no name, be it undecided, not explained or noise. Where nothing is planted,
noise is right. Size is the mean difference, as a multiple of that between two engines without a mistake.
"""


_LEGAL = f"""\
Of each model {DRAWS} batches of 16 x 32 tokens. Six programs of transformers score them, in other batches, with other
kernels and padding: every two of these make a difference. So does each shipped profile that fits the model and that the
certificate draws nothing from, beside `hf-eager`, and so do profiles in other steps: decoding alone and together, a
server's chunks, packs. Differences of one batch are of the same tokens, so the interval counts batches.
"""


def _summary(cases: Cases) -> Iterator[str]:
    listed = [case for case in cases if case["kind"] not in {CLEAN, UNLISTED}]
    single = [case for case in listed if case["kind"] != TWO]
    clean = [case for case in cases if case["kind"] == CLEAN]
    unlisted = [case for case in cases if case["kind"] == UNLISTED]
    beyond = [case for case in single if case["size"] > case["legal"]]
    yield f"- Wrong names: {_of(_count(cases, WRONG), len(cases))}."
    yield f"- One fault that a hypothesis is, named right: {_of(sum(map(is_right, single)), len(single))}."
    yield f"- Of these, where it made more than noise: {_of(sum(map(is_right, beyond)), len(beyond))}."
    yield f"- Nothing planted, called noise: {_of(sum(map(is_right, clean)), len(clean))}."
    yield f"- A fault that no hypothesis is, given no name: {_of(sum(map(is_right, unlisted)), len(unlisted))}.\n"


def is_right(case: Mapping[str, Any]) -> bool:
    """Whether the answer is the right one; what no hypothesis is must not be named."""
    if case["kind"] == CLEAN:
        return verdict(case) in {"noise", "as configured"}
    if case["kind"] == UNLISTED:
        return verdict(case) in {"not explained", "undecided", "noise"}
    return verdict(case) in {"right", "named from the log"}


def _count(cases: Cases, name: str) -> int:
    return sum(verdict(case) == name for case in cases)


def _row(words: str, cases: Cases) -> str:
    others = Counter(verdict(case) for case in cases if not is_right(case))
    rest = ", ".join(f"{count} {name}" for name, count in others.items() if name != WRONG) or "-"
    return f"| {words} | {len(cases)} | {_of(sum(map(is_right, cases)), len(cases))} | {others[WRONG]} | {rest} |"


def _table(heading: str, groups: Mapping[str, Cases]) -> Iterator[str]:
    yield f"\n| {heading} | faulty runs | right | wrong name | clean runs | noise |"
    yield "|---|---|---|---|---|---|"
    for name, cases in groups.items():
        yield _of_group(name, cases)


def _of_group(name: str, cases: Cases) -> str:
    clean = [case for case in cases if case["kind"] == CLEAN]
    faulty = [case for case in cases if case["kind"] != CLEAN]
    cells = (
        len(faulty),
        _of(sum(map(is_right, faulty)), len(faulty)),
        _count(cases, WRONG),
        len(clean),
        _of(sum(map(is_right, clean)), len(clean)),
    )
    return f"| {name} | {' | '.join(map(str, cells))} |"


def _shown(case: Mapping[str, Any]) -> str:
    planted = " and ".join(case["truth"]) or "nothing"
    value = "" if case["value"] is None else f" ({case['value']:g})"
    answer = verdict(case) if verdict(case) != WRONG else f"{WRONG}: {', '.join(case['named'])}"
    size = f"{case['size'] / case['legal']:.1f}" if case["legal"] else "-"
    cells = (
        case["number"],
        case["model"],
        planted + value,
        case["party"],
        case["tokens"],
        size,
        answer,
        f"{case['first']}, {case['share']:.0%}",
    )
    return f"| {' | '.join(map(str, cells))} |"


def _of(events: int, trials: int) -> str:
    """`3 of 5, 60% [15%, 95%]`; `-` without a trial."""
    if not trials:
        return "-"
    interval = binomtest(events, trials).proportion_ci(_LEVEL, method="exact")
    return f"{events} of {trials}, {events / trials:.0%} [{interval.low:.0%}, {interval.high:.0%}]"
