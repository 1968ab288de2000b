"""`moeparity mine`: the prompts and tokens that are most likely to route otherwise in the candidate."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from moeparity.cli.sizes import MemoryLimit

PROMPTS = 20
"""How many prompts and tokens are mined by default."""


def mine(
    recipe: Annotated[Path, typer.Argument(help="A recipe; a few of its sequences show how far its sides lie apart.")],
    from_: Annotated[Path, typer.Option("--from", help="The prompts: a *.jsonl file, or safetensors.")],
    top: Annotated[int, typer.Option(min=1, help="How many prompts, and how many tokens, to keep.")] = PROMPTS,
    out: Annotated[Path | None, typer.Option(help="Write the prompts to this *.jsonl file, for a recipe.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write everything, each token's probability too, as JSON.")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Then run both sides on the mined and on random prompts: did it hold?")
    ] = False,
    tokenizer: Annotated[
        str | None, typer.Option(help="For text: bytes, checkpoint, or a tokenizer.json; the recipe's by default.")
    ] = None,
    calibrate: Annotated[int, typer.Option(min=1, help="Sequences of the recipe that both sides run first.")] = 32,
    draws: Annotated[int, typer.Option(min=1, help="Draws of noise per token and layer.")] = 64,
    seed: Annotated[int, typer.Option(min=0, help="Of the noise, and of the random prompts of --check.")] = 0,
    allow_code: Annotated[bool, typer.Option("--allow-code", help="Let the recipe's `impl:` run Python code.")] = False,
    memory_limit: MemoryLimit = None,
    device: Annotated[str, typer.Option(help="auto (CUDA where there is a GPU), cpu or cuda.")] = "auto",
) -> None:
    """Rank prompts and tokens by how likely their routes flip. It takes one pass of the reference."""
    from moeparity.bisection.mine.run import Request
    from moeparity.bisection.mine.run import mine as run
    from moeparity.bisection.mine.text import print_mined
    from moeparity.cli.progress import progress_line
    from moeparity.cli.render import console
    from moeparity.output.files import refuse_unwritable, write_text

    for path in (out, json):
        if path is not None:
            refuse_unwritable(path)
    request = Request(
        file=from_, top=top, tokenizer=tokenizer, calibrate=calibrate, draws=draws, seed=seed, check=check
    )
    with progress_line() as progress:
        result = run(
            recipe, request, device=device, allow_code=allow_code, memory_limit=memory_limit, progress=progress
        )
    if out is not None:
        write_text(out, result.to_tokens())
    if json is not None:
        write_text(json, result.to_json())
    print_mined(result, console(), out)
