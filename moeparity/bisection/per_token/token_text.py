"""The text of a run's tokens, added only if somebody asks for it, since prompts may be private."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from moeparity import paths
from moeparity.bisection.report import Report
from moeparity.errors import TokensError, Where, display_path
from moeparity.inputs.tokens.tokenizer import Tokenizer, open_tokenizer
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
