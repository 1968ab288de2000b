"""`moeparity sweep`: runs a recipe at several values of some of its fields, with a row of a table for each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from moeparity.cli.options import AllowCode, Device, Html, Json, MemoryLimit, RunOption, WorkersOption
from moeparity.errors import MoeparityError

Over = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE,...",
        help="What to replace in the candidate: profile, dtype, micro_batch, placement.tensor, .expert, .sequence, or "
        "an address such as 'layers[*].moe.gate:output'; 'reference.' or 'both.' in front says whose. Several give all "
        "combinations.",
    ),
]
From = Annotated[
    Path | None,
    typer.Option("--from", metavar="FILE", help="A launch file, or what its engine resolved: the reference."),
]
To = Annotated[
    Path | None,
    typer.Option("--to", metavar="FILE", help="Another one: each setting that differs is put alone and put back."),
]
Role = Annotated[str | None, typer.Option(help="Which side of launch files that start both: server or trainer.")]


def sweep(
    recipe: Annotated[Path, typer.Argument(help="A recipe; with --from and --to a checkpoint's folder, too.")],
    over: Over = None,
    first: From = None,
    second: To = None,
    role: Role = None,
    json: Json = None,
    html: Html = None,
    run: RunOption = None,
    workers: WorkersOption = None,
    allow_code: AllowCode = False,
    memory_limit: MemoryLimit = None,
    device: Device = "auto",
) -> None:
    """Run both sides of a recipe at each of several values. A row each: verdict, k3, KL, flips, first divergence.

    With --from and --to: which of the settings in which two launch configurations differ changes log-probabilities, by
    how much, and in which order to set them.

    Exit code 0 all parity, 1 a divergence, 2 a point could not be run, 3 one is inconclusive; of several the first
    present of 2, 1, 3, 0.
    """
    if first is not None or second is not None:
        files = _files(first, second, {"--over": over, "--run": run, "--workers": workers})
        _ablate(recipe, files, role, {"--json": json, "--html": html}, device, allow_code, memory_limit)
        return
    if not over:
        raise MoeparityError(
            f"{recipe}: nothing is to be swept. Give values with --over, as in `--over micro_batch=1,8`, or two launch "
            "files with --from and --to."
        )
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


def _files(first: Path | None, second: Path | None, others: Mapping[str, object]) -> tuple[Path, Path]:
    """Both files. Raises MoeparityError where one is missing, or something stands beside them."""
    if first is None or second is None:
        raise MoeparityError(
            f"{'--from' if first is None else '--to'} is missing: two launch configurations are compared. Give both "
            "files."
        )
    beside = next((name for name, value in others.items() if value), None)
    if beside is not None:
        raise MoeparityError(f"{beside} is of a sweep over values, and --from and --to compare files. Leave one out.")
    return first, second


def _ablate(
    subject: Path,
    launch_files: tuple[Path, Path],
    role: str | None,
    files: Mapping[str, Path | None],
    device: str,
    allow_code: bool,
    memory_limit: float | None,
) -> None:
    from moeparity.bisection.ablation.run import ablate
    from moeparity.bisection.ablation.show import document
    from moeparity.cli.outputs import outputs

    if role not in (None, "server", "trainer"):
        raise MoeparityError(f"--role {role}: expected server or trainer.")
    with outputs(dict(files)) as written:
        with written.progress() as progress:
            ablation = ablate(
                subject,
                *launch_files,
                role=role,
                device=device,
                allow_code=allow_code,
                memory_limit=memory_limit,
                progress=progress,
            )
        written.report(ablation, document(ablation))
