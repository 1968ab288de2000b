"""`moeparity variance`: computes the same sequences in different batches and compares bits."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from moeparity.cli.options import AllowCode, Device, Html, Json, MemoryLimit


def variance(
    recipe: Annotated[Path, typer.Argument(help="A recipe: checkpoint, tokens, reference, candidate, gate.")],
    batches: Annotated[
        str,
        typer.Option(metavar="SIZES", help="Batch sizes to try, with commas; the others are compared with the first."),
    ] = "1,2,4,8",
    side: Annotated[str, typer.Option(help="Whose compositions: reference, candidate or both.")] = "both",
    json: Json = None,
    html: Html = None,
    allow_code: AllowCode = False,
    memory_limit: MemoryLimit = None,
    device: Device = "auto",
) -> None:
    """Compute the same sequences in other batches: which op varies.

    Says which op first gives other bits, at which tokens and shapes, and how far exp(current - previous) is from 1.
    Exit code 0 nothing varies, 1 something does, 3 nothing does and that says nothing here.
    """
    from moeparity.bisection.variance.run import VarianceRequest
    from moeparity.bisection.variance.run import variance as run
    from moeparity.bisection.variance.show import document
    from moeparity.cli.outputs import outputs

    request = VarianceRequest.of(batches, side)
    with outputs({"--json": json, "--html": html}) as files:
        with files.progress() as progress:
            report = run(
                recipe, request, device=device, allow_code=allow_code, memory_limit=memory_limit, progress=progress
            )
        files.report(report, document(report))
    raise typer.Exit(report.exit_code)
