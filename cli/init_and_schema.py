"""`moeparity init` and `schema`: a recipe that runs at once, and what an editor needs to check files."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


def init(
    checkpoint: Annotated[Path, typer.Argument(help="A checkpoint folder: config.json, with or without weights.")],
    out: Annotated[Path, typer.Option(help="The recipe to write; its prompts go beside it.")] = Path("recipe.yaml"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that are there.")] = False,
    server: Annotated[
        Path | None, typer.Option(help="The server's launch file: the candidate is what it starts.")
    ] = None,
    trainer: Annotated[
        Path | None, typer.Option(help="The trainer's: the reference; it may start the server too.")
    ] = None,
) -> None:
    """Write a recipe and prompts for a checkpoint, ready to run. The recipe says in comments what else it can hold.

    All weights are read once, and a checkpoint that cannot be run is refused. With launch files, both sides are what
    those start, each value with its file and line.
    """
    from moeparity.bisection.init import write_starter
    from moeparity.cli.outputs import outputs
    from moeparity.cli.progress import progress_line
    from moeparity.cli.render import console

    with outputs({"--out": out}, unprinted=("--out",)), progress_line() as progress:
        starter = write_starter(checkpoint, out, force=force, server=server, trainer=trainer, progress=progress)
    written = (starter.recipe, *starter.profiles, starter.tokens)
    console().print(f"wrote {', '.join(map(str, written[:-1]))} and {written[-1]}")
    for another in starter.other_models:
        console().print(f"warning: not this checkpoint's model: {another}", markup=False)
    for warning in starter.warnings:
        console().print(f"warning: no profile has it: {warning}", markup=False)
    if starter.obstacle:
        console().print(f"It does not run: {starter.obstacle}", markup=False)
    if starter.note:
        console().print(f"note: {starter.note}")
    if starter.synthetic:
        console().print("The folder holds no weights, so the recipe says `weights: synthetic(0)`.")
    console().print(f"next: moeparity bisect {starter.recipe}")


class Kind(StrEnum):
    """The kinds of files that are read, then those that are written."""

    graph = "graph"
    profile = "profile"
    recipe = "recipe"
    log = "log"
    kernel = "kernel"
    fault = "fault"
    map = "map"
    layout = "layout"
    report = "report"
    sweep = "sweep"
    variance = "variance"
    flips = "flips"
    mine = "mine"
    metrics = "metrics"
    repeats = "repeats"
    engines = "engines"
    launch = "launch"
    fidelity = "fidelity"
    explain = "explain"
    baseline = "baseline"
    diff = "diff"
    ranks = "ranks"
    weights = "weights"
    contract = "contract"


def schema(
    kind: Annotated[Kind, typer.Argument(help="Which of the files; from `report` on those that are written.")],
) -> None:
    """Print the JSON Schema of a kind of file, or of report.

    Editors check files by it. In one, `# yaml-language-server: $schema=profile.schema.json` names the file it was
    written to.
    """
    from moeparity.cli.reports import report_schema
    from moeparity.plan.editor import json_schema
    from moeparity.plan.spec.reader import KINDS

    printed = json_schema(kind.value) if kind.value in KINDS else report_schema(kind.value)
    print(json.dumps(printed, indent=2, ensure_ascii=False))
