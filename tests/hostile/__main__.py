"""`python -m tests.hostile --minutes 10 --kind recipe --seed 1000`: what breaks the contract, by seed."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from tests.hostile.campaign import Trial, try_one
from tests.hostile.environment import try_situation
from tests.hostile.kills import try_kill
from tests.hostile.subjects import SUBJECTS
from tests.warm import load

KINDS: dict[str, Callable[[int, Path | None], Iterator[Trial]]] = {
    **{kind: partial(try_one, kind) for kind in SUBJECTS},
    "environment": lambda number, _: try_situation(number),
    "kills": lambda number, _: try_kill(number),
}
"""What is tried of a seed; of some kinds seeds are numbers that come to an end."""


def main() -> None:
    """Try seeds until the time or the number is over, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--kind", action="append", choices=sorted(KINDS), help="by default all changed files, in turn")
    parser.add_argument("--seed", type=int, default=0, help="the first")
    parser.add_argument("--number", type=int, default=10**9, help="inputs of each kind at most")
    parser.add_argument("--keep", type=Path, help="a folder that takes every input that breaks the contract")
    options = parser.parse_args()
    load()
    end, tried, broken = time.monotonic() + 60 * options.minutes, Counter[str](), Counter[str]()
    answers: dict[str, Counter[int | None]] = {}
    for seed in range(options.seed, options.seed + options.number):
        trials = [KINDS[kind](seed, options.keep) for kind in options.kind or SUBJECTS]
        before = tried.total()
        for of_seed in trials:
            for trial in of_seed:
                tried[trial.kind] += 1
                answers.setdefault(trial.kind, Counter())[trial.code] += 1
                if trial.breach:
                    broken[trial.kind] += 1
                    print(_line(trial), flush=True)
        if time.monotonic() > end or tried.total() == before:
            break
    for kind, count in tried.items():
        codes = ", ".join(f"{code}: {times}" for code, times in sorted(answers[kind].items(), key=str))
        print(f"{kind:<20} {count:>7} tried, {broken[kind]} broken; exit codes {codes}")


def _line(trial: Trial) -> str:
    return f"{trial.kind}, {trial.case}, {' '.join(trial.command)}: {trial.breach}: {trial.says}"


main()
