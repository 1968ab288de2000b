"""The page that the run writes, from the results that it kept. No figure is written by hand."""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from importlib.metadata import version

from benchmarks.planted_faults.kinds import KINDS
from benchmarks.planted_faults.score import NEARLY, QUESTIONS, SILENT, Mark
from benchmarks.planted_faults.suite import Result
from moeparity.inputs.machine import cpu_name

TOGETHER = 5
"""More cases than these of which nothing is said are told in one line."""

HOW = f"""\
## How to read it

- **Nobody tells of them.** Faults are in functions of a user's (`impl:`), written in plain torch
  (`benchmarks/planted_faults/plain.py`), which without a fault have the bits of the nodes they replace; two kinds have
  settings only. A case is drawn from its seed (`kinds.py`), so that one can be run again:
  `python -m benchmarks.planted_faults --first SEED --cases 1 --folder FOLDER` leaves its recipe, tokens and functions
  in the folder, as a user would write them. moeparity's own kernels have no part in what is planted.
- **Its truth** is that of the planting, held to runs of both sides, each alone (`truth.py`): where bits first differ,
  in which sequences, at padded tokens only or not, which value is not finite. A choice that is planted by name must
  give the function's bits in such a run; what changes nothing is drawn again. A root that has no fault, no setting and
  no other micro-batch stops the suite: then the truth would be wrong.
- **A name** is wrong where the choices that are claimed to give all bits of a function do not, in a run with these in
  its place, on all that it is given; right where they do, though the planted ones may be others; missed where there is
  a word and nothing is claimed. A claim that bounds itself to a part of the values is never wrong.
- **A role** is asked for where what is planted makes nearly all of the divergence, and all else no more than
  {NEARLY:.0%} of it, by the KL of runs alone: then what is planted may not be called without effect, interchangeable,
  masked, helping or offsetting, and nothing else a culprit. *Undecided*: it says that the sequences do not tell, which
  of one token it may. A clean function is one without effect. What is another function, and no rounding, is never
  interchangeable with others.
- **A section that is not there** says nothing: what it was to say is missed.
"""


def page(results: Sequence[Result]) -> str:
    """The whole page as Markdown."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers"))
    machine = f"{cpu_name()}, {os.cpu_count()} cores, one thread; {versions}, Python {platform.python_version()}"
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    parts = [
        "# Planted faults",
        f"Written by `python -m scripts.pages planted-faults` (`--check` compares) on {today}; {machine}.",
        _headline(results),
        "## By question",
        _by_question(results),
        "## By kind of fault",
        _by_kind(results),
        HOW.strip(),
        "## Wrong",
        "\n".join(_outcome_lines(results, "wrong")) or "None.",
        "## Missed",
        "\n".join(_outcome_lines(results, "missed")) or "None.",
        "## Drawn again",
        _redrawn(results),
    ]
    return "\n\n".join(parts) + "\n"


def _headline(results: Sequence[Result]) -> str:
    seeds, models = [result.seed for result in results], {result.model for result in results}
    used = sum(result.seconds for result in results) / len(results)
    names = _of(results, "name")
    wrong = sum(mark.outcome == "wrong" for mark in names)
    innocent = sum(mark.outcome == "wrong" for mark in _of(results, "innocent roots"))
    worded = [mark.outcome for mark in names if mark.worded]
    return (
        f"{len(results)} cases, seeds {min(seeds)} to {max(seeds)}, on {len(models)} model types; {used:.1f} s of "
        f"processor time for an answer, without the truth. Wrong names: {wrong} of {len(names)} "
        f"({wrong / max(1, len(names)):.1%}); of the {len(worded)} functions that a word says, {worded.count('right')} "
        f"are named. Cases with an innocent root: {innocent}."
    )


def _of(results: Iterable[Result], question: str) -> list[Mark]:
    return [mark for result in results for mark in result.marks if mark.question == question]


def _by_question(results: Sequence[Result]) -> str:
    lines = ["| question | asked | right | undecided | missed | wrong |", "|---|---|---|---|---|---|"]
    for question, meaning in QUESTIONS.items():
        counts = Counter(mark.outcome for mark in _of(results, question))
        cells = [str(counts[outcome]) for outcome in ("right", "undecided", "missed", "wrong")]
        lines.append(f"| **{question}**: {meaning} | {counts.total()} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _by_kind(results: Sequence[Result]) -> str:
    lines = ["| kind | cases | first root right | names right | names missed | wrong of any question |"]
    lines += ["|---|---|---|---|---|---|"]
    for kind in KINDS:
        of_kind = [result for result in results if result.kind == kind]
        first, names = _of(of_kind, "first root"), _of(of_kind, "name")
        wrong = sum(mark.outcome == "wrong" for result in of_kind for mark in result.marks)
        counts = Counter(mark.outcome for mark in names)
        cells = [f"{sum(m.outcome == 'right' for m in first)} of {len(first)}", f"{counts['right']} of {len(names)}"]
        lines.append(f"| {kind} | {len(of_kind)} | {' | '.join(cells)} | {counts['missed']} | {wrong} |")
    return "\n".join(lines)


def _outcome_lines(results: Sequence[Result], outcome: str) -> Iterator[str]:
    for question in QUESTIONS:
        of_outcome = [(r, m) for r in results for m in r.marks if (m.question, m.outcome) == (question, outcome)]
        silent = [result.seed for result, mark in of_outcome if mark.why.endswith(SILENT)]
        if len(silent) > TOGETHER:
            yield f"- {question}, nothing is said in {len(silent)} cases: seeds {', '.join(map(str, silent))}"
        for result, mark in of_outcome:
            if len(silent) <= TOGETHER or not mark.why.endswith(SILENT):
                yield f"- {question}, seed {result.seed} ({result.kind}, {result.model}): {mark.why}"


def _redrawn(results: Sequence[Result]) -> str:
    reasons = Counter(_class(reason) for result in results for reason in result.redrawn)
    return ", ".join(f"{reason} {count}" for reason, count in reasons.most_common()) or "Nothing."


def _class(reason: str) -> str:
    for words in ("is not what", "no token", "nothing of", "changes nothing", "too little"):
        if words in reason:
            return {"is not what": "the words do not give its bits", "no token": "no token set apart"}.get(words, words)
    return reason
