"""`python -m tests.hostile --minutes 10 --kind recipe --seed 1000`: what breaks the contract, by seed.

With `--record FILE` what was tried is added to that file, and what stands there already is not tried again; `--table
FILE` prints the table of such a file.
"""

from __future__ import annotations

import argparse
import gc
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path

from tests.hostile import record
from tests.hostile.batch import parse_quickly
from tests.hostile.campaign import Trial, try_many
from tests.hostile.environment import SITUATIONS, try_situation
from tests.hostile.kills import try_kill
from tests.hostile.subjects import SUBJECTS
from tests.warm import load

BLOCK = 200
"""Seeds that are tried and recorded together."""


def _each(trials: Callable[[int], Iterator[Trial]], seeds: range, _: Path | None) -> Iterator[Trial]:
    for seed in seeds:
        yield from trials(seed)


KINDS: dict[str, Callable[[range, Path | None], Iterator[Trial]]] = {
    **{kind: partial(try_many, kind) for kind in SUBJECTS},
    "environment": partial(_each, try_situation),
    "kills": partial(_each, try_kill),
}
"""What is tried of seeds."""
LAST = {"environment": len(SITUATIONS)}
"""Seeds that come to an end."""


def main() -> None:
    """Try seeds until the time or the number is over, and print a table."""
    options = _options()
    if options.table:
        print(record.table(record.read(options.table)))
        return
    load()
    parse_quickly()
    # What is loaded stays: a fork that collects garbage need not look through it.
    gc.freeze()
    end, tried = time.monotonic() + 60 * options.minutes, []
    for kind, seeds in _blocks(options):
        if time.monotonic() > end:
            break
        tried.append(_block(kind, options.seed, seeds, options.keep))
        if options.record:
            record.append(options.record, tried[-1])
    print(record.table(tried))


def _blocks(options: argparse.Namespace) -> Iterator[tuple[str, range]]:
    """What is to be tried: all kinds in turn, blocks of seeds one after the other; of these the share of this process,
    without those of the record.
    """
    recorded = {(block.kind, block.first) for block in record.read(options.record)} if options.record else set()
    kinds = options.kind or list(SUBJECTS)
    size = BLOCK if set(kinds) <= SUBJECTS.keys() else 1
    last = min(options.seed + options.number, *(LAST.get(kind, sys.maxsize) for kind in kinds))
    firsts = range(options.seed, last, size)
    mine, of = options.share
    for place, (first, kind) in enumerate(product(firsts, kinds)):
        if place % of == mine - 1 and (kind, first) not in recorded:
            yield kind, range(first, min(first + size, last))


def _block(kind: str, series: int, seeds: range, keep: Path | None) -> record.Block:
    """Try seeds of one kind; what breaks is printed."""
    codes, before = Counter[str](), _processor_seconds()
    broken: list[str] = []
    for trial in KINDS[kind](seeds, keep):
        codes[str(trial.code)] += 1
        if trial.breach:
            broken.append(f"{trial.case}: {trial.breach}")
            print(f"{trial.kind}, {trial.case}, {' '.join(trial.command)}: {trial.breach}: {trial.says}", flush=True)
    return record.Block(
        kind=kind,
        series=series,
        first=seeds.start,
        number=len(seeds),
        codes=dict(codes),
        broken=broken,
        seconds=_processor_seconds() - before,
        **record.here(),
    )


def _processor_seconds() -> float:
    """What this process and the ended ones that it started have had of processors."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--kind", action="append", choices=sorted(KINDS), help="by default all changed files, in turn")
    parser.add_argument("--seed", type=int, default=0, help="the first")
    parser.add_argument("--number", type=int, default=10**9, help="inputs of each kind at most")
    parser.add_argument("--keep", type=Path, help="a folder that takes every input that breaks the contract")
    parser.add_argument("--record", type=Path, help="a file that takes what was tried; it is not tried again")
    parser.add_argument("--share", type=_share, default=(1, 1), help="1/2: every second block, beside who takes 2/2")
    parser.add_argument("--table", type=Path, help="print the table of a record, and try nothing")
    return parser.parse_args()


def _share(text: str) -> tuple[int, int]:
    mine, of = map(int, text.split("/"))
    if not 1 <= mine <= of:
        raise ValueError(text)
    return mine, of


main()
