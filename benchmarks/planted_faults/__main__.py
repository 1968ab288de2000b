"""Run the cases, keep every answer, and write the page."""

from __future__ import annotations

import argparse
import tempfile
from functools import partial
from pathlib import Path

import torch

from benchmarks.planted_faults.page import page
from benchmarks.planted_faults.suite import Result, Suite, save
from tests.checkpoint_factory import make_small

CASES = 200


def main() -> None:
    """Read the command line, run the cases, write the page."""
    options = _options()
    torch.set_num_threads(1)
    results = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.folder or Path(scratch)
        suite = Suite(folder, partial(_checkpoint, folder))
        for seed in range(options.first, options.first + options.cases):
            result = suite.result(seed)
            save(result, folder)
            results.append(result)
            print("\n".join(_lines(result)), flush=True)
    if options.out is not None:
        options.out.write_text(page(results), "utf-8")


def _checkpoint(folder: Path, name: str) -> Path:
    """A small checkpoint of the tests, made once."""
    checkpoint = folder / "checkpoints" / name
    return checkpoint if checkpoint.exists() else make_small(name, checkpoint)


def _lines(result: Result) -> list[str]:
    head = f"{result.seed:3} {result.kind} ({result.model}): {result.planted}"
    return [head, *(f"    {m.outcome}, {m.question}: {m.why}" for m in result.marks if m.outcome != "right")]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planted_faults", description=__doc__)
    parser.add_argument("--cases", type=int, default=CASES, help=f"how many (default: {CASES})")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--folder", type=Path, help="keep recipes, functions and results here (default: nowhere)")
    parser.add_argument("--out", type=Path, help="write the page, as Markdown, to this file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
