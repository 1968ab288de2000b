"""What was tried, a line for each block of seeds of a kind, so that a campaign can be cut off and several add up."""

from __future__ import annotations

import datetime as dt
import fcntl
import json
import platform
import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path

import torch

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """The trials of `number` seeds of a kind from `first` on; `series` is the seed that the campaign began with, and
    `parts` counts the trials that say more than their kind.
    """

    kind: str
    series: int
    first: int
    number: int
    codes: dict[str, int]
    broken: list[str]
    seconds: float
    commit: str
    versions: str
    machine: str
    parts: dict[str, int] = field(default_factory=dict)
    day: str = field(default_factory=lambda: dt.datetime.now(dt.UTC).date().isoformat())


def surroundings() -> dict[str, str]:
    """What a block was tried on."""
    return {"commit": _commit(), "versions": f"torch {torch.__version__}", "machine": _processor()}


def append(file: Path, block: Block) -> None:
    """Add a block to a record that others may add to."""
    with file.open("a", encoding="utf-8") as record:
        fcntl.flock(record, fcntl.LOCK_EX)
        record.write(json.dumps(asdict(block)) + "\n")


def read(file: Path) -> list[Block]:
    """The blocks of a record; none where there is no file."""
    if not file.exists():
        return []
    return [Block(**json.loads(line)) for line in file.read_text("utf-8").splitlines()]


def table(blocks: Sequence[Block]) -> str:
    """The table of the documentation: of each kind the last series; of the earlier ones what broke, and was mended."""
    last: dict[str, int] = {}
    for block in blocks:
        last[block.kind] = max(block.series, last.get(block.kind, 0))
    counted = [block for block in blocks if block.series == last[block.kind]]
    if not counted:
        return "nothing was tried"
    lines = ["| kind | inputs | seeds from | exit codes | broken | before, and mended |", "|---|---|---|---|---|---|"]
    for kind, series in last.items():
        of_kind = [block for block in blocks if block.kind == kind]
        of_series = [block for block in of_kind if block.series == series]
        codes = sum((Counter(block.codes) for block in of_series), Counter[str]())
        shown = ", ".join(f"{code}: {times:,}" for code, times in sorted(codes.items()))
        inputs, broken = sum(block.number for block in of_series), sum(len(block.broken) for block in of_series)
        before = sum(len(block.broken) for block in of_kind) - broken
        parts = sum((Counter(block.parts) for block in of_series), Counter[str]())
        parts_said = "".join(f"; {times:,} {part}" for part, times in sorted(parts.items()))
        lines.append(f"| {kind} | {inputs:,}{parts_said} | {series:,} | {shown} | {broken} | {before or ''} |")
    minutes = sum(block.seconds for block in counted) / 60
    on = [sorted({getattr(block, name) for block in counted}) for name in ("machine", "versions", "commit", "day")]
    machine, versions, commits, days = map(", ".join, on)
    total = f"{sum(block.number for block in counted):,} inputs in {minutes:.1f} minutes of processor time"
    return "\n".join([*lines, "", f"{total}: {machine}, {versions}, of commit {commits}, {days}."])


@cache
def _commit() -> str:
    words = ["git", "describe", "--always", "--exclude=*", "--dirty=+"]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


@cache
def _processor() -> str:
    names = (
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if "model name" in line
    )
    return next(names, platform.processor())
