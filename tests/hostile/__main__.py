"""`python -m tests.hostile --minutes 10 --kind recipe --seed 1000`: what breaks the contract, by seed.

With `--record FILE` what was tried is added to that file, and what stands there already is not tried again; `--table
FILE` prints the table of such a file.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from tests.hostile import record
from tests.hostile.batch import load_all
from tests.hostile.campaign import Trial, try_many
from tests.hostile.environment import SITUATIONS, try_situation
from tests.hostile.kills import try_kill, try_run_kill
from tests.hostile.subjects import SUBJECTS

if TYPE_CHECKING:
    from multiprocessing.sharedctypes import Synchronized

BLOCK = 100
"""Seeds that are tried and recorded together."""


def _each(trials: Callable[[int], Iterator[Trial]], seeds: range, _: Path | None) -> Iterator[Trial]:
    for seed in seeds:
        yield from trials(seed)


KINDS: dict[str, Callable[[range, Path | None], Iterator[Trial]]] = {
    **{kind: partial(try_many, kind) for kind in SUBJECTS},
    "environment": partial(_each, try_situation),
    "kills": partial(_each, try_kill),
    "runs": partial(_each, try_run_kill),
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
    load_all()
    # What is loaded stays: a fork that collects garbage need not look through it.
    gc.freeze()
    done = {
        (block.kind, seed)
        for block in (record.read(options.record) if options.record else ())
        for seed in range(block.first, block.first + block.number)
    }
    counter = multiprocessing.Value("q", 0)
    children = [child for _ in range(1, options.processes) if (child := _fork(partial(_try, options, done, counter)))]
    _try(options, done, counter)
    for child in children:
        os.waitpid(child, 0)


def _fork(act: Callable[[], None]) -> int:
    """Another process, which does something and ends."""
    child = os.fork()
    if child == 0:
        try:
            act()
        finally:
            os._exit(0)
    return child


def _try(options: argparse.Namespace, done: set[tuple[str, int]], counter: Synchronized[int]) -> None:
    """Take block after block, beside other processes, until the time is over; then the table of this one. All of them
    count in `counter` how many blocks are.
    """
    end, tried = time.monotonic() + 60 * options.minutes, []
    blocks = enumerate(_blocks(options, done))
    while time.monotonic() < end:
        with counter.get_lock():
            mine = counter.value
            counter.value += 1
        block = next((block for number, block in blocks if number == mine), None)
        if block is None:
            break
        tried.append(_block(options, *block))
        if options.record:
            record.append(options.record, tried[-1])
    print(record.table(tried), flush=True)


def _blocks(options: argparse.Namespace, done: set[tuple[str, int]]) -> Iterator[tuple[str, range]]:
    """What is to be tried: all kinds in turn, blocks of seeds one after the other, without what is done."""
    kinds = options.kind or list(SUBJECTS)
    size = BLOCK if set(kinds) <= SUBJECTS.keys() else 1
    last = min(options.seed + options.number, *(LAST.get(kind, sys.maxsize) for kind in kinds))
    for first, kind in product(range(options.seed, last, size), kinds):
        if (kind, first) not in done:
            yield kind, range(first, min(first + size, last))


def _block(options: argparse.Namespace, kind: str, seeds: range) -> record.Block:
    """Try seeds of one kind; what breaks is printed."""
    codes, parts, before = Counter[str](), Counter[str](), _processor_seconds()
    broken: list[str] = []
    for trial in KINDS[kind](seeds, options.keep):
        codes[str(trial.code)] += 1
        parts.update(trial.parts)
        if trial.breach:
            broken.append(f"{trial.case}: {trial.breach}")
            print(f"{trial.kind}, {trial.case}, {' '.join(trial.command)}: {trial.breach}: {trial.says}", flush=True)
    return record.Block(
        kind=kind,
        series=options.seed,
        first=seeds.start,
        number=len(seeds),
        codes=dict(codes),
        parts=dict(parts),
        broken=broken,
        seconds=_processor_seconds() - before,
        **record.surroundings(),
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
    parser.add_argument("--processes", type=int, default=1, help="so many try at the same time")
    parser.add_argument("--table", type=Path, help="print the table of a record, and try nothing")
    return parser.parse_args()


main()
