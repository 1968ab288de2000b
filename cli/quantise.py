"""`moeparity quantise`: a small quantised copy of a checkpoint, in the hub's layout."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from moeparity.errors import MoeparityError, Where
from moeparity.paths import present


def quantise(
    checkpoint: Annotated[Path, typer.Argument(help="A checkpoint folder, not quantised.")],
    like: Annotated[str, typer.Option(metavar="FORMAT", help="A format of `moeparity show formats`.")],
    out: Annotated[Path, typer.Option(help="A new folder for the copy.")],
    group: Annotated[
        int | None, typer.Option(min=0, help="Inputs that share a scale, or the side of a block; 0: all of a row.")
    ] = None,
) -> None:
    """Write a copy of a checkpoint with quantised weights.

    Each weight goes to the nearest code, scales come from the largest number of a block: no calibration. The copy is
    held in memory, so it is for small checkpoints.
    """
    from moeparity.inputs.weights.formats import format_of
    from moeparity.inputs.weights.quantise import default_group
    from moeparity.inputs.weights.quantise import quantise as write

    form = format_of(like)
    if present(out):
        raise MoeparityError(f"{Where(out)}: is there already. Name a new folder with --out.")
    size = default_group(form) if group is None else group
    if form.group and size != form.group:
        raise MoeparityError(f"quantise: --group {size}, but {form.name} has {form.group} inputs to a scale, always.")
    names = write(checkpoint, form, out, size)
    print(f"{len(names)} weights written as {form.name} to {out}.")
