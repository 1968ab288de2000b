"""`moeparity tokens`: what a token file becomes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from moeparity.inputs.tokens import TokenSet
    from moeparity.inputs.tokens.tokenizer import Tokenizer


def tokens(
    path: Annotated[Path, typer.Argument(help="A recipe (*.yaml), or a token file.")],
    tokenizer: Annotated[str | None, typer.Option(help="With a file: bytes, checkpoint, or a tokenizer.json.")] = None,
    checkpoint: Annotated[Path | None, typer.Option(help="With a file: the checkpoint it is for.")] = None,
    sequences: Annotated[int, typer.Option(min=1, help="Sequences to print.")] = 2,
    length: Annotated[int, typer.Option(min=1, help="Tokens to print of each.")] = 64,
) -> None:
    """Print token ids beside what they stand for, and what is scored."""
    from moeparity.cli.render import console

    found, vocabulary = _of_recipe(path) if path.suffix in {".yaml", ".yml"} else _of_file(path, tokenizer, checkpoint)
    rows, width = found.input_ids.shape
    out = console()
    out.print(f"{rows} sequences of up to {width} tokens, {int(found.loss_mask.sum())} scored, {found.pads} pads")
    for row in range(min(sequences, rows)):
        out.print(f"\nsequence {row}")
        out.print(_table(found, vocabulary, row, length))


def _of_recipe(path: Path) -> tuple[TokenSet, Tokenizer | None]:
    from moeparity.errors import Where
    from moeparity.inputs.tokens.read import recipe_tokens
    from moeparity.inputs.tokens.tokenizer import open_tokenizer
    from moeparity.plan.spec import files

    recipe = files.read_recipe(path)
    folder = files.find_file(recipe.checkpoint, Where(path, recipe.line_of("checkpoint")), "checkpoint")
    name = recipe.tokens.tokenizer
    where = Where(path, recipe.tokens.line_of("tokenizer"))
    return recipe_tokens(recipe, path, folder), open_tokenizer(name, where, folder) if name else None


def _of_file(path: Path, name: str | None, checkpoint: Path | None) -> tuple[TokenSet, Tokenizer | None]:
    from moeparity.errors import Where
    from moeparity.inputs.tokens import read_tokens
    from moeparity.inputs.tokens.tokenizer import open_tokenizer

    where = Where(Path("--tokenizer"))
    found = read_tokens(path, checkpoint=checkpoint, tokenizer=name, named_at=where, scored=False)
    return found, open_tokenizer(name, where, checkpoint) if name else None


def _table(found: TokenSet, vocabulary: Tokenizer | None, row: int, length: int) -> Table:
    """The tokens of a sequence, with a column for each thing that the file tells of them."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    cells: dict[str, Callable[[int], str]] = {
        "at": str,
        "id": lambda at: str(int(found.input_ids[row, at])),
    }
    if vocabulary is not None:
        cells["text"] = lambda at: vocabulary.piece(int(found.input_ids[row, at]))
    cells["scored"] = lambda at: "yes" if found.loss_mask[row, at] else ""
    if (labels := found.labels) is not None:
        cells["label"] = lambda at: found.label_names[int(labels[row, at])]
    if (logprobs := found.logprobs) is not None:
        cells["log P"] = lambda at: "" if logprobs[row, at].isnan() else f"{float(logprobs[row, at]):.4g}"
    for column in cells:
        table.add_column(column, overflow="fold")
    for at in found.attention_mask[row].nonzero().flatten()[:length].tolist():
        table.add_row(*(cell(at) for cell in cells.values()))
    return table
