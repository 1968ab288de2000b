"""`moeparity sample`: the tokens a recipe would generate, as a file to use again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def sample(
    recipe: Annotated[Path, typer.Argument(help="A recipe with `tokens: {sample: ...}`.")],
    out: Annotated[Path, typer.Option(help="The safetensors file to write.")],
    allow_code: Annotated[bool, typer.Option("--allow-code", help="Let the recipe's `impl:` run Python code.")] = False,
    device: Annotated[str, typer.Option(help="auto (CUDA where there is a GPU), cpu or cuda.")] = "auto",
) -> None:
    """Continue a recipe's prompts and write the tokens. With them, `sampled_from:` takes the place of `sample:`."""
    from moeparity.bisection.prepare import Options, prepare
    from moeparity.bisection.sample import generate, required_sample
    from moeparity.cli.progress import shown
    from moeparity.cli.signals import finished
    from moeparity.inputs.tokens.tensorfile import file_contents
    from moeparity.output.files import refuse_unwritable, write_tensors

    refuse_unwritable(out)
    with shown() as progress:
        plan = prepare(recipe, device=device, options=Options(allow_code=allow_code), progress=progress)
        asked = required_sample(plan)
        tokens = generate(plan, progress=progress).tokens
    write_tensors(out, *file_contents(tokens))
    finished()
    rows, length = tokens.input_ids.shape
    print(f"{out}: {rows} x {length} tokens, {int(tokens.loss_mask.sum())} generated, {tokens.pads} pads")
    print(f"next: tokens: {{file: {out.name}, sampled_from: {asked.source}}}")
