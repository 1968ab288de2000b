"""Reads token files by their ending: `.jsonl` as JSON lines, anything else as safetensors. A recipe's tokens too."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

import torch

from moeparity import paths
from moeparity.errors import CheckpointError, SpecError, TokensError, Where, counted, shown
from moeparity.inputs.tokens import jsonl, tensorfile
from moeparity.inputs.tokens.tokenizer import open_tokenizer
from moeparity.inputs.tokens.tokenset import TokenSet, defect, predicted_mask
from moeparity.paths import LIMIT_FACTOR, limit
from moeparity.plan.config import Config
from moeparity.plan.spec import reader, recipe_schema

MOST_NEW_TOKENS: Final = 10_000_000
"""The most new tokens of all sequences together."""


def read_tokens(
    path: Path,
    *,
    checkpoint: Path | None = None,
    tokenizer: str | None = None,
    named_at: Where | None = None,
    padding: jsonl.Padding = "right",
    scored: bool = True,
    versions: int = 1,
) -> TokenSet:
    """Read a token file; `moeparity.inputs.tokens.jsonl` and `.tensorfile` say what it may hold.

    tokenizer: turns the text of JSON lines into ids, as `tokenizer.open_tokenizer` says; named_at: where it is named.
    JSON lines of different lengths are padded at the `padding` end with the pad_token_id of the checkpoint's
    config.json (0 if it has none). Pads, and tokens that nothing predicts, are never scored, whatever the file says.
    Raises TokensError, also if `scored` is set and no token is scored, and if more than `versions` of the weights
    sampled what is scored; CheckpointError for a config.json that can't be read.
    """
    where = Where(path)
    if not paths.present(path):
        raise TokensError(f"{where}: no such token file. Check the path.")
    if path.suffix == ".jsonl":
        vocabulary = None if tokenizer is None else open_tokenizer(tokenizer, named_at or Where(path), checkpoint)
        tokens = jsonl.read(path, vocabulary, padding, _pad_id(checkpoint), versions)
    else:
        tokens = tensorfile.read(path, checkpoint)
    reason = defect(tokens.attention_mask)
    if reason is not None:
        raise TokensError(f"{where}: attention_mask: {reason}.")
    loss_mask = tokens.loss_mask & predicted_mask(tokens.attention_mask)
    if scored and not bool(loss_mask.any()):
        no_mask = bool(tokens.loss_mask.equal(tokens.attention_mask))
        raise TokensError(
            f"{where}: no token to score: {'the sequences hold none' if no_mask else 'the mask keeps none'} after the "
            "first position, which has no logits before it."
        )
    return replace(tokens, loss_mask=loss_mask)


def recipe_tokens(recipe: recipe_schema.RecipeFile, path: Path, checkpoint: Path) -> TokenSet:
    """The tokens of a recipe at `path`; with `sample:` these are prompts, of which nothing is scored.

    Raises SpecError for a missing file, TokensError for one that can't be used, and for an engine's records beside
    `sample:`, since they do not belong to the new tokens.
    """
    spec = recipe.tokens
    file = reader.find_file(spec.file, Where(path, spec.line_of("file")), "token file")
    tokens = read_tokens(
        file,
        checkpoint=checkpoint,
        tokenizer=spec.tokenizer,
        named_at=Where(path, spec.line_of("tokenizer")),
        padding=spec.padding,
        scored=spec.sample is None,
        versions=1 + len(recipe.earlier),
    )
    if spec.sample is not None and tokens.has_records:
        raise TokensError(
            f"{Where(path, spec.line_of('sample'))}: tokens.sample continues prompts, and {Where(file)} holds what an "
            "engine recorded of its own tokens. Use `sampled_from:` with it."
        )
    if spec.sample is not None and any(request.grammar for request in tokens.requests):
        raise TokensError(
            f"{Where(path, spec.line_of('sample'))}: tokens.sample continues prompts, and {Where(file)} says what a "
            "grammar allowed as tokens that are there; of new tokens it says nothing. Leave `grammar` out."
        )
    if spec.sample is None:
        return tokens
    _refuse_many(spec.sample.new_tokens, len(tokens.input_ids), Where(path, spec.sample.line_of("new_tokens")))
    return replace(tokens, loss_mask=torch.zeros_like(tokens.loss_mask))


def _refuse_many(new_tokens: int, sequences: int, where: Where) -> None:
    """Raises SpecError for more new tokens of all sequences together than `MOST_NEW_TOKENS`."""
    most = limit(MOST_NEW_TOKENS)
    if new_tokens * sequences > most:
        raise SpecError(
            f"{where}: new_tokens is {new_tokens:,}, {new_tokens * sequences:,} of {counted(sequences, 'sequence')}; "
            f"expected at most {most:,}. Sample fewer, or raise the limit with {LIMIT_FACTOR}."
        )


def _pad_id(checkpoint: Path | None) -> int:
    if checkpoint is None:
        return 0
    config = Config(checkpoint / "config.json")
    value, size = config.get("pad_token_id", 0), config.get("vocab_size", 1)
    if type(value) is not int or value < 0 or (type(size) is int and value >= size):
        raise CheckpointError(
            f"{config.where('pad_token_id')}: pad_token_id is {shown(value)}; expected a token of the vocabulary of "
            f"{shown(size)}."
        )
    return value
