"""Run the suites, keep every answer, and write the page."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import torch

from benchmarks.planted import decoys, hidden, peers
from benchmarks.planted.cases import FIRST, Case
from benchmarks.planted.fix import fix
from benchmarks.planted.hidden_cases import case as hidden_case
from benchmarks.planted.page import page
from benchmarks.planted.score import score

DECOYS, HIDDEN = 160, 90


def main() -> None:
    """Read the command line, run what is not there yet, write the page."""
    options = _options()
    torch.set_num_threads(1)
    for suite in [options.suite] if options.suite else ("decoys", "hidden"):
        (options.folder / suite).mkdir(parents=True, exist_ok=True)
        count = options.cases or (DECOYS if suite == "decoys" else HIDDEN)
        run = run_decoys if suite == "decoys" else run_hidden
        for line in run(options.folder / suite, range(options.first, options.first + count)):
            print(line, flush=True)
        if options.venv is not None:
            numbers = range(options.first, options.first + min(options.peer_cases, count))
            peers.run(suite, options.folder / suite, numbers, options.venv)
    if options.out is not None:
        options.out.write_text(page(options.folder), "utf-8")


def run_decoys(folder: Path, cases: range) -> Iterator[str]:
    """Fix the truth of each case, then ask moeparity; what is there already is not asked again."""
    for number in cases:
        case, truth = fix(number, folder)
        outcome = score(case, truth, answer_of(case, folder / f"{number:03}"))
        yield (
            f"{number:3} {case.background:5} {outcome.outcome} missed {outcome.missed} undecided {outcome.undecided} "
            f"blamed {outcome.blamed} shares {outcome.shares} top {outcome.top} alarm {outcome.alarm}"
        )


def answer_of(case: Case, folder: Path) -> decoys.Answer:
    """The answer kept beside a case, or moeparity's now."""
    file = folder / "answer.json"
    if not file.exists():
        file.write_text(json.dumps(asdict(decoys.ask(case, folder)), indent=1), "utf-8")
    return decoys.answer_of(json.loads(file.read_text("utf-8")))


def run_hidden(folder: Path, cases: range) -> Iterator[str]:
    """The same of the hidden suite, which needs no truth but the patch."""
    for case in map(hidden_case, cases):
        case_folder = folder / f"{case.number:03}"
        if not (case_folder / "answer.json").exists():
            case_folder.mkdir(exist_ok=True)
            (case_folder / "answer.json").write_text(
                json.dumps(asdict(hidden.ask(case, case_folder)), indent=1), "utf-8"
            )
        answer = hidden.answer_of(json.loads((case_folder / "answer.json").read_text("utf-8")))
        answer_words = (
            ", ".join(answer.named)
            or f"none of the {answer.tried} tried (nearest {answer.nearest}, {answer.equal:.1%})"
        )
        yield (
            f"{case.number:3} {case.patch.name if case.patch else 'clean'} at {case.node}: node "
            f"{answer.right_node(case)}, name {answer.name(case)}: {answer_words}"
        )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planted", description=__doc__)
    parser.add_argument("suite", nargs="?", choices=["decoys", "hidden"], help="one suite; both where none is named")
    parser.add_argument("--cases", type=int, help=f"of each suite (default: {DECOYS} decoys, {HIDDEN} hidden)")
    parser.add_argument("--first", type=int, default=FIRST, help=f"the first case's number (default: {FIRST})")
    folder = Path(tempfile.gettempdir()) / "planted"
    parser.add_argument("--folder", type=Path, default=folder, help="where cases and answers are kept")
    parser.add_argument("--venv", type=Path, help="run the peers too, in this environment (made when not there)")
    parser.add_argument("--peer-cases", type=int, default=45, help="how many cases of each suite the peers get")
    parser.add_argument("--out", type=Path, help="write the page, as Markdown, to this file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
