"""Options that several commands share, and the reading of memory sizes."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from moeparity.cli.help import FILES, RUNNING
from moeparity.errors import MoeparityError
from moeparity.paths import present

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def memory_limit(text: str) -> float:
    """The bytes that `24GB`, `24GiB`, `1.5g` or `24000000000` stands for; infinity for `none`. Raises
    MoeparityError.
    """
    if text == "none":
        return math.inf
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([kmgt]?i?)b?", text.lower())
    if match is None or match[2] not in _UNITS:
        raise MoeparityError(f"--memory-limit {text}: expected a size such as 24GB, 24GiB or 24000000000, or none.")
    return float(match[1]) * _UNITS[match[2]]


MemoryLimit = Annotated[
    float | None,
    typer.Option(
        parser=memory_limit,
        metavar="SIZE",
        help="The memory a pass may take, such as 24GB, or none; by default what is available.",
        rich_help_panel=RUNNING,
    ),
]
AllowCode = Annotated[
    bool, typer.Option("--allow-code", help="Let the recipe's `impl:` run Python code.", rich_help_panel=RUNNING)
]
Device = Annotated[str, typer.Option(help="auto (CUDA where there is a GPU), cpu or cuda.", rich_help_panel=RUNNING)]
RunOption = Annotated[
    Path | None,
    typer.Option(
        "--run",
        metavar="DIR",
        help="Keep recipe, plan, environment and results in this folder; the same command goes on with a killed run.",
        rich_help_panel=RUNNING,
    ),
]
WorkersOption = Annotated[
    str | None,
    typer.Option(
        "--workers",
        metavar="WHO",
        help="Who computes: a number of processes here; ray, on a cluster of its own here; ray:auto or ray:HOST:PORT.",
        rich_help_panel=RUNNING,
    ),
]
Json = Annotated[Path | None, typer.Option(help="Write the whole report to this file as JSON.", rich_help_panel=FILES)]
Html = Annotated[
    Path | None,
    typer.Option(help="Write the report to this file as one page for a browser, offline.", rich_help_panel=FILES),
]
Markdown = Annotated[
    Path | None, typer.Option(help="Write a short report to this file as Markdown.", rich_help_panel=FILES)
]
DecodeFrom = Annotated[
    int | None,
    typer.Option(min=1, help="Compute tokens from this one on (from 0) one by one, against the keys and values kept."),
]
ScheduleFile = Annotated[
    Path | None, typer.Option("--schedule", help="A file of batches, one JSON object per step, to compute instead.")
]


def scheduling(decode_from: int | None, schedule: Path | None, micro_batch: int | None) -> Mapping[str, Any] | None:
    """These options as a recipe's `schedule:`; None for a micro-batch alone. Raises MoeparityError."""
    if schedule is None:
        if decode_from is None:
            return None
        batch = "all" if micro_batch is None else {"fixed": micro_batch}
        return {"decode": {"from": decode_from, "batch": batch}}
    option = "--decode-from" if decode_from is not None else "--micro-batch" if micro_batch is not None else None
    if option is not None:
        raise MoeparityError(
            f"--schedule {schedule}: the file says what is computed together, and so does {option}. Give one of them."
        )
    if not present(schedule):
        raise MoeparityError(
            f"--schedule {schedule}: does not exist. Expected a file of batches, one JSON object per step; a relative "
            "path starts where the command runs."
        )
    return {"file": str(schedule)}
