"""`moeparity init`: writes a recipe that can be run at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from moeparity.bisection.init.recipe import Starter


def init(
    checkpoint: Annotated[Path, typer.Argument(help="A checkpoint folder: config.json, with or without weights.")],
    out: Annotated[Path, typer.Option(help="The recipe to write; its prompts go beside it.")] = Path("recipe.yaml"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that are there.")] = False,
    server: Annotated[
        Path | None, typer.Option(help="The server's launch file, or what its engine resolved: the candidate.")
    ] = None,
    trainer: Annotated[
        Path | None, typer.Option(help="The trainer's: the reference; it may start the server too.")
    ] = None,
    adapter: Annotated[
        Path | None, typer.Option(help="The folder of a LoRA adapter, as peft writes it, that both sides have.")
    ] = None,
) -> None:
    """Write a recipe and prompts for a checkpoint, ready to run. The recipe says in comments what else it can hold.

    All weights are read once, and a checkpoint that cannot be run is refused. With launch files, both sides are what
    those start, each value with its file and line. A file in which an engine wrote what it resolved (docs/served.md)
    goes in place of a launch file; what is printed says by which of both each side is known.
    """
    from moeparity.bisection.init import write_starter
    from moeparity.cli.outputs import outputs
    from moeparity.cli.render import console

    with outputs({"--out": out}, unprinted=("--out",)) as files, files.progress() as progress:
        starter = write_starter(
            checkpoint, out, force=force, server=server, trainer=trainer, adapter=adapter, progress=progress
        )
    for line in _starter_lines(starter):
        console().print(line, markup=False)


def _starter_lines(starter: Starter) -> Iterator[str]:
    """What was written, from what, and what the recipe does not hold."""
    from moeparity.bisection.toggles.show import left_out_words

    sides = starter.sides
    written = (starter.recipe, *sides.profiles, starter.tokens)
    yield f"wrote {', '.join(map(str, written[:-1]))} and {written[-1]}"
    yield from sides.bases
    yield from (f"warning: not this checkpoint's model: {another}" for another in sides.other_models)
    yield from (f"warning: both sides compute another function: {choice}" for choice in sides.other_functions)
    yield from (f"warning: no profile covers it: {warning}" for warning in sides.warnings)
    if sides.lacks_adapter:
        yield "note: an adapter is started: give its folder with --adapter, and both sides have it"
    if sides.obstacle:
        yield f"It does not run: {sides.obstacle}"
    yield from (f"left out: {left_out_words(group)}" for group in starter.left_out)
    if starter.note:
        yield f"note: {starter.note}"
    if starter.synthetic:
        yield "The folder holds no weights, so the recipe says `weights: synthetic(0)`."
    yield f"next: moeparity bisect {starter.recipe}"
