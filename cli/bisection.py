"""`moeparity bisect`: is it parity, where does it start, which choice is to blame, and what is the smallest fix."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from moeparity.bisection.real_ranks.data import REAL, SIMULATED, RanksKind
from moeparity.cli.help import FILES, RUNNING
from moeparity.cli.markdown import Markdown, files_of, write_report
from moeparity.cli.options import AllowCode, Device, Html, Json, MemoryLimit, RunOption, WorkersOption
from moeparity.cli.outputs import outputs, refuse_reports
from moeparity.errors import MoeparityError
from moeparity.plan.spec.base import By

if TYPE_CHECKING:
    from moeparity.bisection.options import Options
    from moeparity.inputs.tokens.tokenizer import Tokenizer

_FURTHER = "Further passes (the recipe's by default)"

Recipe = Annotated[Path, typer.Argument(help="A recipe: checkpoint, tokens, reference, candidate, gate.")]
PerTokenFile = Annotated[
    Path | None,
    typer.Option(
        "--per-token",
        help="Write k3, KL, flips and margins of every token to this safetensors file.",
        rich_help_panel=FILES,
    ),
]
WithText = Annotated[
    bool,
    typer.Option(
        "--with-text",
        help="With --html or --per-token: the text of the tokens too, and their ids.",
        rich_help_panel=FILES,
    ),
]
Bundles = Annotated[By | None, typer.Option(help="How differences are bundled into toggles; the recipe's by default.")]
Split = Annotated[
    int | None,
    typer.Option(min=0, help="Passes that take the largest toggles apart.", rich_help_panel=_FURTHER),
]
Swap = Annotated[
    list[str] | None,
    typer.Option(help="Restore this block, such as 'layers[*].moe'; may be repeated.", rich_help_panel=_FURTHER),
]
Floor = Annotated[
    bool | None,
    typer.Option(help="Run the reference against itself, about four forwards.", rich_help_panel=_FURTHER),
]
Oracle = Annotated[
    bool | None,
    typer.Option(help="Run everything in fp64: which side is nearer the truth.", rich_help_panel=_FURTHER),
]
Replay = Annotated[
    bool | None,
    typer.Option(help="Run the candidate with the reference's routes forced.", rich_help_panel=_FURTHER),
]
Envelope = Annotated[
    int | None,
    typer.Option(min=0, help="Draw this many legal orders of each op that differs.", rich_help_panel=_FURTHER),
]
Attribute = Annotated[
    bool | None,
    typer.Option(help="Divide the divergence among the toggles and find the smallest fixes.", rich_help_panel=_FURTHER),
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Print every section of the report.")]
Sections = Annotated[
    list[str] | None,
    typer.Option(help="Print this section too; the report names those that it leaves out. May be repeated."),
]

Ranks = Annotated[
    RanksKind,
    typer.Option(
        help="Under torchrun, `real`: first run placed sides on the job's ranks, and compare them with simulated ones.",
        rich_help_panel=RUNNING,
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Run nothing: print the time, memory and disk that it would take here.")
]


def bisect(
    recipe: Recipe,
    json: Json = None,
    html: Html = None,
    markdown: Markdown = None,
    per_token: PerTokenFile = None,
    with_text: WithText = False,
    run: RunOption = None,
    workers: WorkersOption = None,
    by: Bundles = None,
    split: Split = None,
    swap: Swap = None,
    floor: Floor = None,
    oracle: Oracle = None,
    replay: Replay = None,
    envelope: Envelope = None,
    attribute: Attribute = None,
    ranks: Ranks = SIMULATED,
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
    from moeparity.bisection.options import Options
    from moeparity.bisection.sections import asked_for

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
        ranks=ranks,
    )
    wanted = {"--json": json, "--html": html, "--per-token": per_token, **files_of(markdown)}
    if dry_run:
        _print_cost(recipe, device, options, {**wanted, "--run": run})
    settings = {"device": device, "options": options, "run": run, "workers": workers, "with_text": with_text}
    raise typer.Exit(_run(recipe, wanted, asked_for(section or (), all_of_them=verbose), **settings))


def _run(
    recipe: Path, wanted: Mapping[str, Path | None], sections: Sequence[str], *, with_text: bool, **settings: Any
) -> int:
    """Run, write and print; returns the exit code. In a job of several ranks only the first one writes and prints."""
    from moeparity.bisection.per_token.token_file import spelt, write_per_token
    from moeparity.bisection.pipeline import bisect as run_recipe
    from moeparity.bisection.pipeline import take_part
    from moeparity.bisection.sections import print_report
    from moeparity.probe.live_all_reduce import first_rank

    if settings["options"].ranks == REAL and not first_rank():
        take_part(recipe, settings["device"], settings["options"])
        return 0
    tokenizer = _tokenizer(recipe, wanted["--html"] or wanted["--per-token"]) if with_text else None
    with outputs(wanted, unprinted=("--per-token",)) as files:
        with files.progress() as progress:
            report = run_recipe(recipe, progress=progress, **settings)
        report = report if tokenizer is None else spelt(report, tokenizer)
        write_report(files, report)
        files.file("--per-token", partial(write_per_token, report))
    print_report(report, files.console(), sections)
    return report.exit_code


def _tokenizer(recipe: Path, file: Path | None) -> Tokenizer:
    """The tokenizer for the text of a recipe's tokens; opened before the run, so that a mistake shows early."""
    from moeparity.bisection.per_token.token_file import recipe_tokenizer

    if file is None:
        raise MoeparityError("bisect: --with-text is for --html and --per-token. Give one of them too.")
    return recipe_tokenizer(recipe)


def _print_cost(recipe: Path, device: str, options: Options, written: Mapping[str, Path | None]) -> NoReturn:
    """Print what the recipe would take on this machine, and exit."""
    from moeparity.bisection.cost import expected
    from moeparity.cli.render import show
    from moeparity.output.blocks import names

    begun = time.process_time()
    refuse_reports("bisect", written)
    show([names(expected(recipe, device=device, options=options, begun=begun).rows)])
    raise typer.Exit
