"""The page that the run writes. No figure is written by hand."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import groupby
from operator import attrgetter

from benchmarks.launch_pairs.pairs import TRAINERS, Case
from benchmarks.launch_pairs.run import Answer, faults_of
from moeparity.inputs.machine import cpu_name
from tests.command import ROOT

HOW = """\
Twelve launch files of servers with twelve of trainers, in the forms that public examples have
(`benchmarks/launch_pairs/files`), on a Qwen3-MoE and a DeepSeek-V3 of two layers with random weights. Of each pair and
model `moeparity init CHECKPOINT --server S --trainer T` writes a recipe; one difference is planted in its candidate;
`moeparity bisect` runs it on 8 prompts.

- **Left out** must be the trials that cannot run, and no others, by a rule written apart from moeparity
  (`benchmarks/launch_pairs/rule.py`): a sum that is scattered by tokens has no other kernel than NCCL's ring; an
  engine's own all-reduce runs on 2, 4 or 8 ranks; torch's grouped GEMM takes rows of whole 16 bytes.
- **Named**: `blame` where the first screen's line names what was planted; `table` where no other choice makes as much
  alone and none leaves as little restored.
- **Refused**: `init` names what it has no profile of, with the same words where no weight can be read.
"""


def page(answers: Mapping[Case, Answer]) -> str:
    """The whole page as Markdown."""
    machine = f"{cpu_name()}, {os.cpu_count()} cores, one thread; torch {version('torch')}, {platform.python_version()}"
    wrong = {case: faults for case, answer in answers.items() if (faults := faults_of(case, answer))}
    parts = [
        "# Pairs of launch files",
        f"Written by `python -m scripts.pages launch-pairs` on {datetime.now(UTC):%Y-%m-%d}; {machine}.",
        HOW.strip(),
        _sums(answers, wrong),
        "## What is not as it should be",
        _wrong(wrong) or "Nothing.",
        "## By pair",
        _matrix(answers, wrong),
        "## Every case",
        "\n".join([*_table(answers)]),
    ]
    return "\n\n".join(parts) + "\n"


def _sums(answers: Mapping[Case, Answer], wrong: Mapping[Case, list[str]]) -> str:
    refused = sum(bool(answer.refused) for answer in answers.values())
    reports = [answer for answer in answers.values() if answer.toggles]
    places = [answer.where for answer in reports]
    left_out = sum(len(answer.left_out) for answer in reports)
    trials = 2 * sum(len(answer.toggles) for answer in reports)
    seconds = sum(answer.seconds for answer in answers.values())
    count = len(places) - places.count("")
    return (
        f"{len(answers)} cases: {len(reports)} reports, {refused} refusals by name; {len(answers) - len(wrong)} are as "
        f"they should be. Of {trials} trials {left_out} are left out. What was planted is named in {count} of "
        f"{len(reports)} reports, in {places.count('blame')} of them on the first screen. {seconds / 60:.0f} minutes "
        "of processor time."
    )


def _wrong(wrong: Mapping[Case, list[str]]) -> str:
    """What is wrong, with the cases of which the same is."""
    names: dict[str, list[str]] = {}
    for case, faults in wrong.items():
        names.setdefault("; ".join(faults).replace(f"{ROOT}/", ""), []).append(case.name)
    return "\n".join(f"- {fault} ({len(of_fault)}: {', '.join(of_fault)})" for fault, of_fault in names.items())


def _matrix(answers: Mapping[Case, Answer], wrong: Mapping[Case, list[str]]) -> str:
    lines = [f"| | {' | '.join(TRAINERS)} |", "|---" * (len(TRAINERS) + 1) + "|"]
    for server, of_server in groupby(answers, attrgetter("server")):
        cells = {
            trainer: " ".join(_cell(case, answers[case], wrong) for case in group)
            for trainer, group in groupby(of_server, attrgetter("trainer"))
        }
        lines.append(f"| {server} | {' | '.join(cells.get(trainer, '') for trainer in TRAINERS)} |")
    return "\n".join(lines)


def _cell(case: Case, answer: Answer, wrong: Mapping[Case, list[str]]) -> str:
    if case in wrong:
        return "**wrong**"
    return "refused" if answer.refused else answer.where


def _table(answers: Mapping[Case, Answer]) -> list[str]:
    lines = ["| server | trainer | model | planted | it says | named | left out |", "|---" * 7 + "|"]
    for case, answer in answers.items():
        line = (answer.refused or answer.error or answer.verdict).replace(f"{ROOT}/", "")
        says = " ".join(line.replace("|", "/").split())[:120]
        place = answer.where or ("" if answer.refused else "no")
        left_out = ", ".join(f"{toggle} {way}" for toggle, way, _ in answer.left_out)
        cells = (case.server, case.trainer, case.model, answer.planted, says, place, left_out)
        lines.append(f"| {' | '.join(cells)} |")
    return lines
