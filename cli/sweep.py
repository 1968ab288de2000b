"""`moeparity sweep`: runs a recipe at several values of some of its fields, with a row of a table for each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from moeparity.cli.options import AllowCode, Device, Html, Json, MemoryLimit, RunOption, WorkersOption


def sweep(
    recipe: Annotated[Path, typer.Argument(help="A recipe: checkpoint, tokens, reference, candidate, gate.")],
    over: Annotated[
        list[str],
        typer.Option(
            metavar="KEY=VALUE,...",
            help="What to replace in the candidate: profile, dtype, micro_batch, placement.tensor, .expert, .sequence, "
            "or an address such as 'layers[*].moe.gate:output'; 'reference.' or 'both.' in front says whose. Several "
            "give all combinations.",
        ),
    ],
    json: Json = None,
    html: Html = None,
    run: RunOption = None,
    workers: WorkersOption = None,
    allow_code: AllowCode = False,
    memory_limit: MemoryLimit = None,
    device: Device = "auto",
) -> None:
    """Run both sides of a recipe at each of several values. A row each: verdict, k3, KL, flips, first divergence.

    Exit code 0 all parity, 1 a divergence, 2 a point could not be run, 3 one is inconclusive; of several the first
    present of 2, 1, 3, 0.
    """
    from moeparity.bisection.sweep.run import sweep as run_sweep
    from moeparity.bisection.sweep.show import document
    from moeparity.cli.outputs import outputs

    with outputs({"--json": json, "--html": html}) as files:
        with files.progress() as progress:
            table = run_sweep(
                recipe,
                over,
                device=device,
                allow_code=allow_code,
                memory_limit=memory_limit,
                progress=progress,
                run=run,
                workers=workers,
            )
        files.report(table, document(table))
    raise typer.Exit(table.exit_code)
