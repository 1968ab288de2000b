"""Schedules of rule `vllm-v1` beside those of vLLM's own `Scheduler`, on loads drawn at random.

    python -m benchmarks.schedulers SOURCES [--loads 500] [--seed 1]

SOURCES is an unpacked source distribution of vLLM 0.33.0. Nothing of it is built; what its import asks for (msgspec,
cbor2, pyzmq and others) has to be installed, but for what `benchmarks/schedulers/stand_ins.py` names. Each load has up
to 6 sequences of up to 30 tokens that arrive at different steps and begin alike, a token budget, a bound on running
sequences, and a prefix cache or none. Its own scheduler is asked for step after step, and told the tokens that the
sequences have. Exits with 1 at the first load of which a step differs.
"""

from __future__ import annotations

import argparse
import importlib
import random
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.schedulers.stand_ins import stand_in
from benchmarks.turns import header
from moeparity.errors import Where
from moeparity.plan.schedule.make import schedule
from moeparity.plan.schedule.settings import settings
from moeparity.plan.schedule.token_grid import TokenGrid
from moeparity.plan.spec import reader

Steps = list[list[tuple[int, ...]]]
"""Of each step (sequence, first, last + 1)."""
HERE = Where(Path("benchmarks.schedulers"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Sequences and when they come; tokens of a step, sequences that run, tokens of a block (None: no cache)."""

    grid: TokenGrid
    arrivals: tuple[int, ...]
    budget: int
    most: int
    block: int | None

    @property
    def fields(self) -> dict[str, Any]:
        """What a recipe says of it."""
        return {
            "rule": "vllm-v1",
            "decode": {"from": "prompt", "arrivals": list(self.arrivals)},
            "prefill": {"chunk": self.budget},
            "sequences": self.most,
            **({} if self.block is None else {"prefix": {"block": self.block}}),
        }


def main() -> int:
    """Compare as many loads as asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", type=Path)
    parser.add_argument("--loads", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    # Behind everything else: the sources have a folder of benchmarks of their own.
    sys.path.append(str(options.sources))
    stand_in()
    own_steps = importlib.import_module("benchmarks.schedulers.vllm_own").own_steps
    draw, copies, mixed, count = random.Random(options.seed), 0, 0, 0  # noqa: S311  reproducible draws
    print(f"{header(1)}, {_version(options.sources)}")
    for _ in range(options.loads):
        load = drawn(draw)
        steps, copy_count = made_steps(load)
        theirs = own_steps(load.grid, load.arrivals, load.budget, load.most, load.block)
        if steps != theirs:
            print(f"differs: {load}\nmoeparity {steps}\nvLLM      {theirs}")
            return 1
        copies, count = copies + copy_count, count + len(steps)
        mixed += sum(len({last - first > 1 for _, first, last in step}) > 1 for step in steps)
    print(f"{options.loads} loads, {count:,} steps, {mixed:,} with spans of one token and longer ones: all equal")
    print(f"{copies:,} prefixes were found in the cache")
    return 0


def drawn(draw: random.Random) -> Load:
    """One load."""
    length, sequences = draw.randint(2, 30), draw.randint(1, 6)
    tokens = [draw.randint(1, length) for _ in range(sequences)]
    shared = [draw.randint(0, 1) for _ in range(length)]
    ids = []
    for _ in range(sequences):
        cut = draw.randint(0, length)
        ids.append((*shared[:cut], *(draw.randint(0, 1) for _ in range(length - cut))))
    most = draw.randint(1, 4)
    return Load(
        grid=TokenGrid(
            spans=tuple((0, count) for count in tokens),
            prompts=tuple(draw.randint(1, count) for count in tokens),
            length=length,
            ids=tuple(ids),
        ),
        arrivals=tuple(draw.choice([0, 0, draw.randint(0, 9)]) for _ in tokens),
        # vLLM takes no budget below the sequences that may run.
        budget=draw.randint(most, 24),
        most=most,
        block=draw.choice([None, 1, 2, 4]),
    )


def made_steps(load: Load) -> tuple[Steps, int]:
    """The steps of moeparity's schedule, and how many prefixes it found in the cache."""
    by = settings(reader.read_scheduling(load.fields, HERE), None, load.grid.sequences, HERE)
    steps = [step for step in schedule(by, load.grid, HERE).steps if not step.filler]
    return [[tuple(span) for span in step.spans] for step in steps], sum(len(step.copies) for step in steps)


def _version(sources: Path) -> str:
    lines = (sources / "PKG-INFO").read_text("utf-8").splitlines()
    return " ".join(line.partition(": ")[2] for line in lines if line.startswith(("Name: ", "Version: ")))


if __name__ == "__main__":
    sys.exit(main())
