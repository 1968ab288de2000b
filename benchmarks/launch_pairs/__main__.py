"""Run the cases that are not there yet, and write the page."""

from __future__ import annotations

import argparse
import tempfile
from itertools import islice
from pathlib import Path

import torch

from benchmarks.launch_pairs.page import page
from benchmarks.launch_pairs.pairs import cases
from benchmarks.launch_pairs.run import answer_of, faults_of


def main() -> None:
    """Read the command line, run what is not there yet, write the page."""
    options = _options()
    torch.set_num_threads(1)
    answers = {}
    for case in islice(cases(), options.cases):
        (options.folder / case.name).mkdir(parents=True, exist_ok=True)
        answers[case] = answer_of(case, options.folder)
        wrong = "; ".join(faults_of(case, answers[case]))
        print(f"{case.number:3} {case.name}: {wrong or 'right'}", flush=True)
    if options.out is not None:
        options.out.write_text(page(answers), "utf-8")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.launch_pairs", description=__doc__)
    parser.add_argument("--cases", type=int, help="the first so many (default: all)")
    folder = Path(tempfile.gettempdir()) / "launch-pairs"
    parser.add_argument("--folder", type=Path, default=folder, help="where cases and answers are kept")
    parser.add_argument("--out", type=Path, help="write the page, as Markdown, to this file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
