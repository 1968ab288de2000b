"""`moeparity flips`: where routes flip and at what cost; or, with --mine, the prompts most likely to flip."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moeparity.cli.help import FILES
from moeparity.cli.options import AllowCode, Device, Html, Json, MemoryLimit, RunOption
from moeparity.errors import MoeparityError, listed

if TYPE_CHECKING:
    from moeparity.cli.outputs import Outputs

_MINING = "With --mine"
_TOP, _CALIBRATED, _DRAWS, _SEED = 20, 32, 64, 0

Map = Annotated[
    Path | None,
    typer.Option(
        "--map",
        help="Write what became of each token in each layer to this safetensors file.",
        rich_help_panel=FILES,
    ),
]
Mine = Annotated[
    Path | None,
    typer.Option(
        metavar="PROMPTS",
        help="Instead, rank the prompts of this file (*.jsonl or safetensors) by how likely their routes flip: one "
        "pass of the reference, and the recipe's own sequences on both sides.",
    ),
]
Top = Annotated[
    int, typer.Option(min=1, help="How many prompts, and how many tokens, to keep.", rich_help_panel=_MINING)
]
Out = Annotated[
    Path | None, typer.Option(help="Write the prompts to this *.jsonl file, for a recipe.", rich_help_panel=_MINING)
]
Check = Annotated[
    bool,
    typer.Option(
        "--check",
        help="Then run both sides on the prompts kept and on random ones: did it hold?",
        rich_help_panel=_MINING,
    ),
]
Tokenizer = Annotated[
    str | None,
    typer.Option(
        help="For text: bytes, checkpoint, or a tokenizer.json; the recipe's by default.", rich_help_panel=_MINING
    ),
]
Calibrate = Annotated[
    int, typer.Option(min=1, help="Sequences of the recipe that both sides run first.", rich_help_panel=_MINING)
]
Draws = Annotated[int, typer.Option(min=1, help="Draws of noise per token and layer.", rich_help_panel=_MINING)]
Seed = Annotated[
    int, typer.Option(min=0, help="Of the noise, and of the random prompts of --check.", rich_help_panel=_MINING)
]


def flips(
    context: typer.Context,
    recipe: Annotated[Path, typer.Argument(help="A recipe; both sides are run, and each difference alone.")],
    mine: Mine = None,
    json: Json = None,
    map_: Map = None,
    html: Html = None,
    top: Top = _TOP,
    out: Out = None,
    check: Check = False,
    tokenizer: Tokenizer = None,
    calibrate: Calibrate = _CALIBRATED,
    draws: Draws = _DRAWS,
    seed: Seed = _SEED,
    run: RunOption = None,
    allow_code: AllowCode = False,
    memory_limit: MemoryLimit = None,
    device: Device = "auto",
) -> None:
    """Where routes flip, by which choice, and at what cost.

    Every definition, origin, margin and cost. Routes that two engines recorded are compared by `moeparity diff`.

    Exit code 0; where the recipe bounds its flips (`expect: flips`) 1 if a bound is not met, 3 if a record contradicts.
    """
    from moeparity.cli.outputs import outputs

    _refuse_others(context, mining=mine is not None)
    settings = {"device": device, "allow_code": allow_code, "memory_limit": memory_limit, "run": run}
    with outputs({"--json": json, "--map": map_, "--html": html, "--out": out}, unprinted=("--map",)) as files:
        if mine is None:
            code = _flips(recipe, files, settings)
        else:
            drawn = {"calibrate": calibrate, "draws": draws, "seed": seed}
            code = _mine(recipe, files, out, settings, file=mine, top=top, check=check, tokenizer=tokenizer, **drawn)
    raise typer.Exit(code)


def _refuse_others(context: typer.Context, *, mining: bool) -> None:
    """Refuse options that belong to the other use of the command. Raises MoeparityError."""
    panels = {
        option.name: (option.opts[0], getattr(option, "rich_help_panel", None)) for option in context.command.params
    }
    options = [
        name for name in context.params if getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"
    ]
    if mining and "map_" in options:
        raise MoeparityError(
            "flips: --map writes what became of each token; --mine runs no candidate on them. Leave one out."
        )
    surplus = [panels[name][0] for name in options if panels[name][1] == _MINING and not mining]
    if surplus:
        raise MoeparityError(f"flips: {listed(surplus)}: for prompts that are mined. Give --mine PROMPTS too.")


def _flips(recipe: Path, files: Outputs, settings: dict[str, Any]) -> int:
    """Run the recipe, write and print its flips; returns the exit code."""
    from moeparity.bisection.flips.document import document
    from moeparity.bisection.flips.run import flips as run_flips

    with files.progress() as progress:
        result = run_flips(recipe, progress=progress, **settings)
    files.file("--map", result.write_map)
    files.report(result, document(result, str(recipe)))
    return result.exit_code


def _mine(recipe: Path, files: Outputs, out: Path | None, settings: dict[str, Any], **request: Any) -> int:
    """Rank the prompts, write and print them; returns the exit code, which is 0."""
    from moeparity.bisection.mine.run import MineRequest
    from moeparity.bisection.mine.run import mine as run_mine
    from moeparity.bisection.mine.show import document

    with files.progress() as progress:
        result = run_mine(recipe, MineRequest(**request), progress=progress, **settings)
    files.text("--out", result.to_tokens)
    files.report(result, document(result, str(recipe), out))
    return 0
