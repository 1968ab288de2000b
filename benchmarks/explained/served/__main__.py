"""Run programs, then compare each run with a good one: `python -m benchmarks.explained.served [--folder DIR]
[--only PROGRAM] [--out FILE]`.

What is in DIR is not made again. Runs that are no fault serve the same requests, half of them added at other steps.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import torch

from benchmarks.explained.served.cases import Case, cases, jobs
from benchmarks.explained.served.compared import Outcome, outcome
from benchmarks.explained.served.named import Named, named_faults
from benchmarks.explained.served.page import page
from benchmarks.explained.served.programs import PROGRAMS, Program
from moeparity.inputs.machine import cpu_name

SEED = 20261128
AT_ONCE = 8
"""Checkpoints that one process of a program loads."""


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.explained.served", description=__doc__)
    parser.add_argument("--folder", type=Path, help="keep checkpoints, traces and results here (default: nowhere)")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--only", default="", help="programs whose name or model has this text")
    parser.add_argument("--out", type=Path, help="write the page, as Markdown, to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    outcomes: list[Outcome] = []
    names: list[Named] = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = (options.folder or Path(scratch)).resolve()
        for program in (program for program in PROGRAMS if options.only in program.label):
            good, *others = cases(folder, options.seed, program)
            run(folder, program, [good, *others])
            outcomes += outcomes_of(good, others)
            names += names_of(others)
    where = f"{cpu_name()}, one thread, torch {torch.__version__}, {datetime.now(UTC):%Y-%m-%d}, seed {options.seed}"
    text = page(outcomes, names, where)
    print(text.partition("## Every fault")[0])
    if options.out is not None:
        options.out.write_text(text, "utf-8")


def run(folder: Path, program: Program, every: Sequence[Case]) -> None:
    """Every run that has no answer, some checkpoints a process."""
    pending = [job for job in jobs(every) if any(not Path(run["answer"]).exists() for run in job["runs"])]
    for first in range(0, len(pending), AT_ONCE):
        program.ask(folder, pending[first : first + AT_ONCE])


def outcomes_of(good: Case, others: Sequence[Case]) -> Iterator[Outcome]:
    """What `diff` says of each, as a file beside its trace where that was asked before."""
    for case in others:
        file = case.own_folder / "outcome.json"
        if not file.exists():
            file.write_text(outcome(good, case).as_json(), "utf-8")
        yield Outcome.of_json(file.read_text("utf-8"))


def names_of(others: Sequence[Case]) -> Iterator[Named]:
    """What `explain` says of each run, likewise."""
    for case in others:
        file = case.own_folder / "named.json"
        if not file.exists():
            file.write_text(json.dumps([answer.as_json() for answer in named_faults(case)]), "utf-8")
        yield from map(Named.of_json, json.loads(file.read_text("utf-8")))


if __name__ == "__main__":
    main()
