"""Runs of transformers with a planted fault or without one, examined by the doctor: what it names, and what wrongly.

    python -m benchmarks.doctor FOLDER [--cases 540] [--only CLASS] [--seed 1] [--share 1/2] [--out PAGE]
    python -m benchmarks.doctor FOLDER --times
    python -m benchmarks.doctor FOLDER --smallest
    python -m benchmarks.doctor FOLDER --coverage [--seed 1]
    python -m benchmarks.doctor FOLDER --evidence [--seed 1]
    python -m benchmarks.doctor FOLDER --served [--only MODEL] [--seed 1] [--out PAGE]

Each case is drawn: two models of transformers score tokens, each in batches of its own size and with its own kernels
and threads, and one of them may have a fault, or each one. They are of four architectures, and an update has moved
their weights by a drawn fraction. FOLDER keeps a line for each case, and a second run takes those that are missing;
several at once take a share each, and one without a share tells of all. With --served a live vLLM samples with a faulty
checkpoint, and transformers scores. Exits with 1 if anything is given a wrong name.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count, islice
from pathlib import Path
from typing import Any

import torch

from benchmarks.doctor import served
from benchmarks.doctor.case import WRONG, examined, verdict
from benchmarks.doctor.coverage import coverage
from benchmarks.doctor.drawn import CLASSES, CLEAN, slot
from benchmarks.doctor.evidence import evidence
from benchmarks.doctor.page import page
from benchmarks.doctor.smallest import smallest
from benchmarks.doctor.times import times


def main() -> int:
    """Examine the cases that are missing, and print a table of all, or write the page."""
    options = _options()
    options.folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    if options.served:
        return _served(options)
    lines = _lines(options)
    if lines is not None and options.out is None:
        for line in lines:
            print(line, flush=True)
        return 0
    cases = _cases(options)
    for kind in (CLEAN, *CLASSES):
        counts = Counter(verdict(case) for case in cases if case["kind"] == kind)
        print(f"{kind:<12}", ", ".join(f"{number} {name}" for name, number in counts.most_common()))
    if options.out is not None:
        options.out.write_text(page(cases, options.seed, [*_coverage(options.folder, options.seed)]), "utf-8")
    # A page says itself what was named wrongly.
    return int(options.out is None and any(verdict(case) == WRONG for case in cases))


def _served(options: argparse.Namespace) -> int:
    """The runs of a live vLLM, each told as it ends, or their page."""
    lines = []
    for line in served.served(options.folder.resolve(), options.seed, options.only):
        print(line["program"], line["run"], served.verdict(line), line["named"], flush=True)
        lines.append(line)
    if options.out is not None:
        options.out.write_text(served.page(lines, options.seed), "utf-8")
    return int(options.out is None and any(served.verdict(line) == "wrong" for line in lines))


def _lines(options: argparse.Namespace) -> Iterator[str] | None:
    """What is measured beside the cases; None if nothing is asked for."""
    if options.times:
        return times(options.folder)
    if options.smallest:
        return smallest(options.folder)
    if options.evidence:
        return evidence(options.folder, options.seed)
    return _coverage(options.folder, options.seed) if options.coverage else None


def _coverage(folder: Path, seed: int) -> Iterator[str]:
    """The lines of a table; those of an earlier call, where it was at its end."""
    lines = folder / f"coverage-{seed}.md"
    if not lines.exists():
        lines.write_text("\n".join(coverage(folder, seed)))
    return iter(lines.read_text().splitlines())


def _cases(options: argparse.Namespace) -> Sequence[dict[str, Any]]:
    """The first cases of a seed, or of one class of it, those of this run's share that no run kept examined now."""
    name = f"cases-{options.seed}-{options.only}" if options.only else f"cases-{options.seed}"
    lines = options.folder / f"{name}.jsonl"
    lines.touch()
    of_class = (number for number in count() if options.only in {"", slot(number)[0]})
    numbers = [*islice(of_class, options.cases)]
    cases = {case["number"]: case for case in map(json.loads, lines.read_text("utf-8").splitlines())}
    share, shares = options.share
    with lines.open("a", encoding="utf-8") as file:
        for number in numbers[share - 1 :: shares]:
            if number not in cases:
                cases[number] = examined(options.folder, options.seed, number)
                print(json.dumps(cases[number]), file=file, flush=True)
    return [cases[number] for number in numbers if number in cases]


def _share(text: str) -> tuple[int, int]:
    """Which share of how many, as `1/2` says it."""
    share, _, shares = text.partition("/")
    if not 1 <= int(share) <= int(shares):
        raise ValueError(text)
    return int(share), int(shares)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.doctor", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cases", type=int, default=540)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--share", type=_share, default=(1, 1), help="which of several runs at once this is, as 1/2")
    parser.add_argument("--times", action="store_true", help="tell how long an examination takes, and nothing else")
    parser.add_argument("--smallest", action="store_true", help="find the smallest effects that are no noise")
    parser.add_argument("--coverage", action="store_true", help="tell how often a legal difference is called a bug")
    parser.add_argument("--evidence", action="store_true", help="tell what each kind of evidence adds")
    parser.add_argument("--served", action="store_true", help="examine logs of a live vLLM with a faulty checkpoint")
    parser.add_argument(
        "--only",
        default="",
        help="of --served: runs whose program, model or fault has this text; else one class of runs",
    )
    parser.add_argument("--out", type=Path, help="write the page, as Markdown, to this file")
    options = parser.parse_args()
    if not options.served and options.only not in {"", CLEAN, *CLASSES}:
        parser.error(f"--only {options.only}: expected one of {', '.join((CLEAN, *CLASSES))}")
    return options


if __name__ == "__main__":
    raise SystemExit(main())
