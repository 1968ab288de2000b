"""Draw the cases, run them, print the table; exit 1 below the goals."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import torch

from benchmarks.explained.campaign import Outcome, cases, outcome
from benchmarks.explained.page import page, rows
from moeparity.inputs.machine import cpu_name
from tests.checkpoint_factory import make_small

GOAL = 0.95
SEED = 8


def main() -> int:
    """Run it."""
    options = _options()
    torch.set_num_threads(1)
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="explained-") as folder:
        checkpoints: dict[str, Path] = {}
        for number, case in enumerate(cases(options.seed)):
            if options.only not in f"{case.kind} {case.name} {case.model}":
                continue
            if case.model not in checkpoints:
                checkpoints[case.model] = make_small(case.model, Path(folder) / case.model)
            case_folder = Path(folder) / str(number)
            case_folder.mkdir()
            start = time.process_time()
            outcomes.append(outcome(case, checkpoints[case.model], case_folder))
            print(rows(outcomes[-1:])[0], f"{time.process_time() - start:.1f} s", flush=True)
    where = f"{cpu_name()}, one thread, torch {torch.__version__}, {datetime.now(UTC):%Y-%m-%d}, seed {options.seed}"
    text = page(outcomes, where)
    print(text.partition("## Every case")[0])
    if options.out is not None:
        options.out.write_text(text, "utf-8")
    return int(not reached(outcomes))


def reached(outcomes: Sequence[Outcome]) -> bool:
    """Whether every changed node is named and no other is, and of `GOAL` of the patched ones the answer is right."""
    right = [outcome.right for outcome in outcomes if outcome.case.patch is not None]
    return all(outcome.is_found and not outcome.innocent for outcome in outcomes) and sum(right) >= GOAL * len(right)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.explained", description=__doc__)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--only", default="", help="cases whose kind, name or model has this text")
    parser.add_argument("--out", type=Path, help="write the page, as Markdown, to this file")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
