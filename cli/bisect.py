"""`moeparity bisect`: is it parity, where does it start, which choice is to blame, and what is the smallest fix."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from moeparity.cli.markdown import Markdown, files_of, write_report
from moeparity.cli.options import AllowCode, Device, MemoryLimit, RunOption
from moeparity.cli.outputs import outputs
from moeparity.errors import MoeparityError
from moeparity.plan.spec.base import By

if TYPE_CHECKING:
    from moeparity.bisection.prepare import Options

Recipe = Annotated[Path, typer.Argument(help="A recipe: checkpoint, tokens, reference, candidate, gate.")]
Json = Annotated[Path | None, typer.Option(help="Write the whole report to this file as JSON.")]
Bundles = Annotated[By | None, typer.Option(help="How differences are bundled into toggles; the recipe's by default.")]
Split = Annotated[
    int | None,
    typer.Option(min=0, help="Further passes that take the largest toggles apart; the recipe's by default."),
]
Swap = Annotated[
    list[str] | None, typer.Option(help="Also restore this block, such as 'layers[*].moe'; may be repeated.")
]
Floor = Annotated[
    bool | None,
    typer.Option(help="Also run the reference against itself, about four more forwards; the recipe's by default."),
]
Oracle = Annotated[
    bool | None,
    typer.Option(help="Also run everything in fp64: which side is nearer the truth; the recipe's by default."),
]
Replay = Annotated[
    bool | None,
    typer.Option(help="Also run the candidate with the reference's routes forced; the recipe's by default."),
]
Envelope = Annotated[
    int | None,
    typer.Option(min=0, help="Also draw so many legal orders of each op that differs; the recipe's by default."),
]
Attribute = Annotated[
    bool | None,
    typer.Option(
        help="Also share the divergence out among the toggles and find the smallest fixes; the recipe's by default."
    ),
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Print every section of the report.")]
Sections = Annotated[
    list[str] | None,
    typer.Option(help="Print this section too; the report names those that it leaves out. May be repeated."),
]

DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Run nothing: print the time, memory and disk that it would take here.")
]


def bisect(
    recipe: Recipe,
    json: Json = None,
    markdown: Markdown = None,
    run: RunOption = None,
    by: Bundles = None,
    split: Split = None,
    swap: Swap = None,
    floor: Floor = None,
    oracle: Oracle = None,
    replay: Replay = None,
    envelope: Envelope = None,
    attribute: Attribute = None,
    dry_run: DryRun = False,
    verbose: Verbose = False,
    section: Sections = None,
    allow_code: AllowCode = False,
    memory_limit: MemoryLimit = None,
    device: Device = "auto",
) -> None:
    """Is it parity, where does it start, which choice is to blame.

    Exit code 0 parity, 1 divergence, 2 usage or bad input, 3 inconclusive.
    """
    from moeparity.bisection.pipeline import bisect as run_recipe
    from moeparity.bisection.prepare import Options
    from moeparity.bisection.text import asked_for, print_report
    from moeparity.cli.progress import progress_line

    options = Options(
        by=by,
        split=split,
        swap=tuple(swap or ()),
        floor=floor,
        oracle=oracle,
        replay=replay,
        envelope=envelope,
        attribute=attribute,
        allow_code=allow_code,
        memory_limit=memory_limit,
    )
    if dry_run:
        _print_cost(recipe, device, options, {"--json": json, "--markdown": markdown, "--run": run})
    asked = asked_for(section or (), all_of_them=verbose)
    with outputs({"--json": json, **files_of(markdown)}) as files:
        with progress_line() as progress:
            report = run_recipe(recipe, device=device, options=options, progress=progress, run=run)
        write_report(files, report)
    print_report(report, files.console(), asked)
    raise typer.Exit(report.exit_code)


def _print_cost(recipe: Path, device: str, options: Options, written: Mapping[str, Path | None]) -> NoReturn:
    """Print what the recipe would take on this machine, and end."""
    from moeparity.bisection.cost import expected
    from moeparity.cli.render import console

    for option in (option for option, path in written.items() if path is not None):
        raise MoeparityError(f"bisect: --dry-run makes no report for {option} to write. Give one of them.")
    for label, text in expected(recipe, device=device, options=options).lines.items():
        console().print(f"{label:<9}{text}", markup=False, highlight=False)
    raise typer.Exit
