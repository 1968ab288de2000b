"""Files and pages of every token: the safetensors file, and the text of the tokens if somebody asks for it."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path

import torch

from moeparity import paths
from moeparity.bisection.flips.census import MAP_BITS
from moeparity.bisection.report import Report
from moeparity.errors import TokensError, Where, display_path
from moeparity.inputs.tokens.tokenizer import Tokenizer, open_tokenizer
from moeparity.output.writing import write_tensors
from moeparity.plan.spec import reader


def recipe_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a recipe's tokens; if it names none, its checkpoint's.

    Raises TokensError if there is neither, MoeparityError for a recipe that cannot be read.
    """
    recipe = reader.read_recipe(path)
    folder = reader.find_file(recipe.checkpoint, Where(path, recipe.line_of("checkpoint")), "checkpoint")
    where = Where(path, recipe.tokens.line_of("tokenizer") if recipe.tokens.tokenizer else recipe.line_of("tokens"))
    if recipe.tokens.tokenizer is None and not paths.present(folder / "tokenizer.json"):
        raise TokensError(
            f"{where}: --with-text: the recipe names no tokenizer, and {display_path(folder)} has no tokenizer.json. "
            "Add `tokenizer:` to tokens (docs/tokens.md), or leave out --with-text."
        )
    return open_tokenizer(recipe.tokens.tokenizer or "checkpoint", where, folder)


def spelt(report: Report, tokenizer: Tokenizer) -> Report:
    """A copy of the report with the text of its tokens."""
    tokens = report.per_token
    if tokens is None:
        return report
    pieces = {token: tokenizer.piece(token) for token in set(tokens.input_ids.ravel().tolist())}
    rows = tuple(tuple(pieces[token] for token in row) for row in tokens.input_ids.tolist())
    return replace(report, per_token=replace(tokens, pieces=rows))


SCHEMA = "moeparity.per-token/1"
"""Schema of the file. The number grows if a tensor changes its meaning or goes."""


def write_per_token(report: Report, path: Path) -> None:
    """Write each array of `PerToken` under its name; `input_ids`, which are text, only if `pieces` are given, and
    `update_parts` if there are any.

    Raises MoeparityError if the file cannot be written.
    """
    tokens = report.per_token
    assert tokens is not None, "every run looks at its tokens"
    left_out = {"pieces"} if tokens.pieces is not None else {"pieces", "input_ids"}
    left_out |= {"update_parts"} if tokens.update_parts is None else set()
    names = [field.name for field in fields(tokens) if field.name not in left_out]
    tensors = {name: torch.from_numpy(getattr(tokens, name)).contiguous() for name in names}
    write_tensors(path, tensors, {"schema": SCHEMA, "bits": json.dumps(MAP_BITS)})
