"""`moeparity flips` and `mine`: where routes flip and at what cost, and the prompts most likely to flip some."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moeparity.cli.options import AllowCode, Device, Html, MemoryLimit, RunOption
from moeparity.errors import MoeparityError

if TYPE_CHECKING:
    from rich.console import Console

    from moeparity.bisection.flips.run import Flipped

Recipe = Annotated[
    Path | None, typer.Argument(help="A recipe; its two sides are run, and each difference alone and restored.")
]
Log = Annotated[
    tuple[Path, Path] | None,
    typer.Option(
        metavar="A B",
        help="Instead: two files of routes that engines recorded of the same tokens; no weights needed.",
    ),
]
TopK = Annotated[
    int | None, typer.Option(min=1, help="With --log: experts per token, where a file has no shape (SGLang).")
]
Json = Annotated[Path | None, typer.Option(help="Write the whole picture to this file as JSON.")]
Map = Annotated[
    Path | None,
    typer.Option("--map", help="Write what became of each token in each layer to this safetensors file."),
]
_MARKS = {"ok": "ok", "fail": "FAIL", "inconclusive": "inconclusive"}


def flips(
    recipe: Recipe = None,
    log: Log = None,
    top_k: TopK = None,
    json: Json = None,
    map_: Map = None,
    html: Html = None,
    run: RunOption = None,
    allow_code: AllowCode = False,
    memory_limit: MemoryLimit = None,
    device: Device = "auto",
) -> None:
    """Routing flips of a recipe, or between two engines' records. Every definition, origin, margin and cost.

    Exit code 0; where the recipe bounds its flips (`expect: flips`) 1 if a bound is not met, 3 if a record contradicts.
    """
    _check(recipe, log, top_k, run)
    from moeparity.bisection.flips.run import flips as run_flips
    from moeparity.bisection.flips.run import logged_flips
    from moeparity.bisection.page import flip_pictures
    from moeparity.cli.outputs import outputs
    from moeparity.cli.progress import progress_line
    from moeparity.output.status import state_of

    with outputs({"--json": json, "--map": map_, "--html": html}, unprinted=("--map",)) as files:
        if log is not None:
            result = logged_flips(*log, top_k=top_k)
        elif recipe is not None:
            with progress_line() as progress:
                result = run_flips(
                    recipe, device=device, allow_code=allow_code, memory_limit=memory_limit, progress=progress, run=run
                )
        files.text("--json", result.to_json)
        files.file("--map", result.write_map)
        state = state_of(result.exit_code, bounded=bool(result.findings))
        about = ("flips", recipe or result.candidate, state)
        files.page(about, partial(print_flipped, result), partial(flip_pictures, result.report))
    print_flipped(result, files.console())
    raise typer.Exit(result.exit_code)


def _check(recipe: Path | None, log: tuple[Path, Path] | None, top_k: int | None, run: Path | None) -> None:
    if (recipe is None) == (log is None):
        count = "neither" if recipe is None else "both"
        raise MoeparityError(f"flips: {count} of a recipe and --log A B given. Give one of them.")
    if top_k is not None and log is None:
        raise MoeparityError("flips: --top-k is for files of recorded routes. Give --log A B too.")
    if run is not None and log is not None:
        raise MoeparityError("flips: --run keeps the run of a recipe; with --log nothing runs. Leave one out.")


def print_flipped(result: Flipped, out: Console) -> None:
    """Print flips, with what the recipe bounds."""
    from moeparity.bisection.flips.text import print_flips
    from moeparity.output.status import state_of, status_line

    opening = status_line(state_of(result.exit_code, bounded=bool(result.findings)), result.status)
    out.print(opening)
    sequences = f"{result.sequences} sequence{'s' * (result.sequences != 1)}"
    out.print(f"reference  {result.reference}\ncandidate  {result.candidate}\n{sequences}{_of_same(result)}")
    print_flips(result.flips, out)
    for finding in result.findings:
        out.print(f"{_MARKS[finding.status]}  {finding.expectation}  {finding.found}")
    out.print()
    out.print(opening)


def _of_same(result: Flipped) -> str:
    """Whether recorded routes are known to be of the same tokens."""
    if result.same_tokens is None:
        return ""
    if result.same_tokens == result.sequences:
        return ", token ids agree as far as both files give them"
    extent = f"in {result.same_tokens} of them only" if result.same_tokens else "in none of them"
    return f"; both files give token ids {extent}, so that the tokens are the same is not checked"


PROMPTS = 20
"""How many prompts and tokens are mined by default."""


def mine(
    recipe: Annotated[Path, typer.Argument(help="A recipe; a few of its sequences show how far its sides lie apart.")],
    from_: Annotated[Path, typer.Option("--from", help="The prompts: a *.jsonl file, or safetensors.")],
    top: Annotated[int, typer.Option(min=1, help="How many prompts, and how many tokens, to keep.")] = PROMPTS,
    out: Annotated[Path | None, typer.Option(help="Write the prompts to this *.jsonl file, for a recipe.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write everything, each token's probability too, as JSON.")] = None,
    html: Html = None,
    check: Annotated[
        bool, typer.Option("--check", help="Then run both sides on the mined and on random prompts: did it hold?")
    ] = False,
    tokenizer: Annotated[
        str | None, typer.Option(help="For text: bytes, checkpoint, or a tokenizer.json; the recipe's by default.")
    ] = None,
    calibrate: Annotated[int, typer.Option(min=1, help="Sequences of the recipe that both sides run first.")] = 32,
    draws: Annotated[int, typer.Option(min=1, help="Draws of noise per token and layer.")] = 64,
    seed: Annotated[int, typer.Option(min=0, help="Of the noise, and of the random prompts of --check.")] = 0,
    run: RunOption = None,
    allow_code: AllowCode = False,
    memory_limit: MemoryLimit = None,
    device: Device = "auto",
) -> None:
    """Rank prompts and tokens by how likely their routes flip. It takes one pass of the reference."""
    from moeparity.bisection.mine.page import pictures
    from moeparity.bisection.mine.run import Request
    from moeparity.bisection.mine.run import mine as run_mine
    from moeparity.bisection.mine.text import print_mined
    from moeparity.cli.outputs import outputs
    from moeparity.cli.progress import progress_line

    request = Request(
        file=from_, top=top, tokenizer=tokenizer, calibrate=calibrate, draws=draws, seed=seed, check=check
    )
    with outputs({"--out": out, "--json": json, "--html": html}) as files:
        with progress_line() as progress:
            result = run_mine(
                recipe,
                request,
                device=device,
                allow_code=allow_code,
                memory_limit=memory_limit,
                progress=progress,
                run=run,
            )
        files.text("--out", result.to_tokens)
        files.text("--json", result.to_json)
        files.page(
            ("mine", recipe, "done"), lambda console: print_mined(result, console, out), partial(pictures, result)
        )
    print_mined(result, files.console(), out)
