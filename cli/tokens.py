"""`moeparity tokens` and `sample`: what a token file becomes; tokens of a log, or that a recipe samples, as one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moeparity.cli.options import AllowCode, Device
from moeparity.errors import MoeparityError

if TYPE_CHECKING:
    from rich.table import Table

    from moeparity.inputs.tokens import TokenSet
    from moeparity.inputs.tokens.tokenizer import Tokenizer


def tokens(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE", help="A recipe (*.yaml) or a token file; with --out, logs.")
    ],
    tokenizer: Annotated[str | None, typer.Option(help="With a file: bytes, checkpoint, or a tokenizer.json.")] = None,
    checkpoint: Annotated[Path | None, typer.Option(help="With a file: the checkpoint it is for.")] = None,
    sequences: Annotated[
        int | None, typer.Option(min=1, help="Sequences to print, 2 by default; with --out to write, all by default.")
    ] = None,
    length: Annotated[int, typer.Option(min=1, help="Tokens to print of each.")] = 64,
    out: Annotated[
        Path | None, typer.Option(help="Write the sampler's side of logs as this token file: *.jsonl, or safetensors.")
    ] = None,
    format: Annotated[
        str | None, typer.Option("--format", help="With --out: what the logs are, where contents leave it open.")
    ] = None,
) -> None:
    """Token ids beside their text, or the token file of a log."""
    if out is not None:
        _write(files, out, format, sequences)
        return
    if len(files) > 1 or format is not None:
        raise MoeparityError(
            "tokens: without --out, which makes a token file of logs, one recipe or token file is printed. Name one, "
            "or add --out."
        )
    _print(files[0], tokenizer, checkpoint, sequences or 2, length)


def _write(files: list[Path], out: Path, format: str | None, most: int | None) -> None:
    """Make a token file of logs, and say what is in it."""
    from moeparity.cli.outputs import outputs
    from moeparity.inputs.tokens.jsonl import lines
    from moeparity.inputs.tokens.tensorfile import file_contents
    from moeparity.logs.opening import open_sampled
    from moeparity.logs.tokens import about, tokens_of
    from moeparity.output.writing import write_tensors, write_text

    with outputs({"--out": out}, unprinted=("--out",)) as written:
        logged = tokens_of(open_sampled(files, format=format), most=most)
        if out.suffix == ".jsonl":
            written.file("--out", lambda path: write_text(path, "".join(f"{line}\n" for line in lines(logged.tokens))))
        else:
            written.file("--out", lambda path: write_tensors(path, *file_contents(logged.tokens)))
        for sentence in about(logged, out):
            written.console().print(sentence)


def _print(path: Path, tokenizer: str | None, checkpoint: Path | None, sequences: int, length: int) -> None:
    from moeparity.cli.render import console

    token_set, vocabulary = (
        _of_recipe(path) if path.suffix in {".yaml", ".yml"} else _of_file(path, tokenizer, checkpoint)
    )
    rows, width = token_set.input_ids.shape
    out = console()
    out.print(
        f"{rows} sequences of up to {width} tokens, {int(token_set.loss_mask.sum())} scored, {token_set.pads} pads"
    )
    for row in range(min(sequences, rows)):
        out.print(f"\nsequence {row}")
        out.print(_table(token_set, vocabulary, row, length))


def _of_recipe(path: Path) -> tuple[TokenSet, Tokenizer | None]:
    from moeparity.errors import Where
    from moeparity.inputs.tokens.reader import recipe_tokens
    from moeparity.inputs.tokens.tokenizer import open_tokenizer
    from moeparity.plan.spec import reader

    recipe = reader.read_recipe(path)
    folder = reader.find_file(recipe.checkpoint, Where(path, recipe.line_of("checkpoint")), "checkpoint")
    name = recipe.tokens.tokenizer
    where = Where(path, recipe.tokens.line_of("tokenizer"))
    return recipe_tokens(recipe, path, folder), open_tokenizer(name, where, folder) if name else None


def _of_file(path: Path, name: str | None, checkpoint: Path | None) -> tuple[TokenSet, Tokenizer | None]:
    from moeparity.errors import Where
    from moeparity.inputs.tokens import read_tokens
    from moeparity.inputs.tokens.tokenizer import open_tokenizer

    where = Where(Path("--tokenizer"))
    token_set = read_tokens(path, checkpoint=checkpoint, tokenizer=name, named_at=where, scored=False)
    return token_set, open_tokenizer(name, where, checkpoint) if name else None


def _table(token_set: TokenSet, vocabulary: Tokenizer | None, row: int, length: int) -> Table:
    """The tokens of a sequence, with a column for each thing that the file tells of them."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    cells: dict[str, Callable[[int], str]] = {
        "at": str,
        "id": lambda at: str(int(token_set.input_ids[row, at])),
    }
    if vocabulary is not None:
        cells["text"] = lambda at: vocabulary.piece(int(token_set.input_ids[row, at]))
    cells["scored"] = lambda at: "yes" if token_set.loss_mask[row, at] else ""
    if (labels := token_set.labels) is not None:
        cells["label"] = lambda at: token_set.label_names[int(labels[row, at])]
    if (logprobs := token_set.logprobs) is not None:
        cells["log P"] = lambda at: "" if logprobs[row, at].isnan() else f"{float(logprobs[row, at]):.4g}"
    for column in cells:
        table.add_column(column, overflow="fold")
    for at in token_set.attention_mask[row].nonzero().flatten()[:length].tolist():
        table.add_row(*(cell(at) for cell in cells.values()))
    return table


def sample(
    recipe: Annotated[Path, typer.Argument(help="A recipe with `tokens: {sample: ...}`.")],
    out: Annotated[Path, typer.Option(help="The safetensors file to write.")],
    allow_code: AllowCode = False,
    device: Device = "auto",
) -> None:
    """Continue a recipe's prompts and write the tokens. With them, `sampled_from:` takes the place of `sample:`."""
    from moeparity.bisection.options import Options
    from moeparity.bisection.prepare import prepare
    from moeparity.bisection.sample import generate, required_sample
    from moeparity.cli.outputs import outputs
    from moeparity.cli.progress import progress_line
    from moeparity.cli.signals import ignore_signals
    from moeparity.inputs.tokens.tensorfile import file_contents
    from moeparity.output.writing import write_tensors

    with outputs({"--out": out}, unprinted=("--out",)) as files:
        with progress_line() as progress:
            plan = prepare(recipe, device=device, options=Options(allow_code=allow_code), progress=progress)
            spec = required_sample(plan)
            tokens = generate(plan, progress=progress).tokens
        files.file("--out", lambda path: write_tensors(path, *file_contents(tokens)))
    ignore_signals()
    rows, length = tokens.input_ids.shape
    console = files.console()
    console.print(f"{out}: {rows} x {length} tokens, {int(tokens.loss_mask.sum())} generated, {tokens.pads} pads")
    console.print(f"next: tokens: {{file: {out.name}, sampled_from: {spec.source}}}")
