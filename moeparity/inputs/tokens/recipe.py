"""The tokens a recipe names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from moeparity.errors import TokensError, Where
from moeparity.inputs.tokens.read import read_tokens
from moeparity.inputs.tokens.tokenset import TokenSet
from moeparity.plan.spec import files, schema


def recipe_tokens(recipe: schema.RecipeFile, path: Path, checkpoint: Path) -> TokenSet:
    """The tokens of a recipe at `path`; where it has `sample:`, prompts, none of which is scored.

    Raises SpecError for a file that is not there, TokensError for one that can't be used, and for records of an engine
    where new tokens are to be sampled, which they do not belong to.
    """
    asked = recipe.tokens
    file = files.beside(asked.file, Where(path, asked.line_of("file")), "token file")
    tokens = read_tokens(
        file,
        checkpoint=checkpoint,
        tokenizer=asked.tokenizer,
        named_at=Where(path, asked.line_of("tokenizer")),
        padding=asked.padding,
        scored=asked.sample is None,
    )
    if asked.sample is not None and tokens.has_records:
        raise TokensError(
            f"{Where(path, asked.line_of('sample'))}: tokens.sample continues prompts, and {Where(file)} holds what an "
            "engine recorded of its own tokens. Use `sampled_from:` with it."
        )
    return tokens if asked.sample is None else replace(tokens, loss_mask=torch.zeros_like(tokens.loss_mask))
