"""`python -m tests.hostile --minutes 10 --kind recipe --seed 1000`: what breaks the contract, by seed."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from pathlib import Path

from tests.hostile.campaign import Trial, try_one, warm
from tests.hostile.subjects import SUBJECTS


def main() -> None:
    """Try seeds until the time or the number is over, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--kind", action="append", choices=sorted(SUBJECTS), help="by default all, in turn")
    parser.add_argument("--seed", type=int, default=0, help="the first")
    parser.add_argument("--number", type=int, default=10**9, help="inputs of each kind at most")
    parser.add_argument("--keep", type=Path, help="a folder that takes every input that breaks the contract")
    options = parser.parse_args()
    warm()
    end, tried, broken = time.monotonic() + 60 * options.minutes, Counter[str](), Counter[str]()
    answers: dict[str, Counter[int | None]] = {}
    for seed in range(options.seed, options.seed + options.number):
        for kind in options.kind or SUBJECTS:
            for trial in try_one(kind, seed, options.keep):
                tried[kind] += 1
                answers.setdefault(kind, Counter())[trial.code] += 1
                if trial.breach:
                    broken[kind] += 1
                    print(_line(trial), flush=True)
        if time.monotonic() > end:
            break
    for kind, count in tried.items():
        codes = ", ".join(f"{code}: {times}" for code, times in sorted(answers[kind].items(), key=str))
        print(f"{kind:<20} {count:>7} tried, {broken[kind]} broken; exit codes {codes}")


def _line(trial: Trial) -> str:
    return f"{trial.kind}, seed {trial.seed}, {' '.join(trial.command)}: {trial.breach}: {trial.says}"


main()
