"""`moeparity variance`: the same sequences computed together in several ways."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from moeparity.cli.options import AllowCode, Device, Html, MemoryLimit


def variance(
    recipe: Annotated[Path, typer.Argument(help="A recipe: checkpoint, tokens, reference, candidate, gate.")],
    batches: Annotated[
        str, typer.Option(metavar="SIZES", help="Sequences computed together, with commas; the first is held against.")
    ] = "1,2,4,8",
    side: Annotated[str, typer.Option(help="Whose compositions: reference, candidate or both.")] = "both",
    json: Annotated[Path | None, typer.Option(help="Write the comparisons to this file as JSON.")] = None,
    html: Html = None,
    allow_code: AllowCode = False,
    memory_limit: MemoryLimit = None,
    device: Device = "auto",
) -> None:
    """Compute the same sequences in other batches: which op varies.

    The first op with other bits, at which tokens and shapes, and exp(current - previous) against 1.
    Exit code 0 nothing varies, 1 something does, 3 nothing does and that says nothing here.
    """
    from moeparity.bisection.variance.page import pictures
    from moeparity.bisection.variance.run import Request
    from moeparity.bisection.variance.run import variance as run
    from moeparity.bisection.variance.text import print_variance
    from moeparity.cli.outputs import outputs
    from moeparity.cli.progress import progress_line
    from moeparity.output.status import state_of

    request = Request.of(batches, side)
    with outputs({"--json": json, "--html": html}) as files:
        with progress_line() as progress:
            report = run(
                recipe, request, device=device, allow_code=allow_code, memory_limit=memory_limit, progress=progress
            )
        files.text("--json", report.to_json)
        about = ("variance", recipe, state_of(report.exit_code))
        files.page(about, partial(print_variance, report), partial(pictures, report))
    print_variance(report, files.console())
    raise typer.Exit(report.exit_code)
