"""Token files by the end of their name: `.jsonl` is read as JSON lines, anything else as safetensors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from moeparity.errors import CheckpointError, TokensError, Where, shown
from moeparity.inputs.tokens import jsonl, tensorfile
from moeparity.inputs.tokens import padding as pads
from moeparity.inputs.tokens.tokenizer import open_tokenizer
from moeparity.inputs.tokens.tokenset import TokenSet, predicted
from moeparity.plan.config import Config


def read_tokens(
    path: Path,
    *,
    checkpoint: Path | None = None,
    tokenizer: str | None = None,
    named_at: Where | None = None,
    padding: jsonl.Padding = "right",
    scored: bool = True,
) -> TokenSet:
    """Read a token file; `moeparity.inputs.tokens.jsonl` and `.tensorfile` say what it may hold.

    `tokenizer` turns the text of JSON lines into ids, as `tokenizer.open_tokenizer` says; it is named
    at `named_at`. JSON lines of unequal length are padded at the `padding` end with the pad_token_id of the
    checkpoint's config.json (0 where it has none). Pads and what nothing predicts are never scored, whatever the file
    says. Raises TokensError, also for tokens that are to be `scored` and hold none that is; CheckpointError for a
    config.json that cannot be read.
    """
    where = Where(path)
    if not path.exists():
        raise TokensError(f"{where}: no such token file. Check the path.")
    if path.suffix == ".jsonl":
        opened = None if tokenizer is None else open_tokenizer(tokenizer, named_at or Where(path), checkpoint)
        tokens = jsonl.read(path, opened, padding, _pad_id(checkpoint))
    else:
        tokens = tensorfile.read(path)
    reason = pads.defect(tokens.attention_mask)
    if reason is not None:
        raise TokensError(f"{where}: attention_mask: {reason}.")
    kept = tokens.loss_mask & predicted(tokens.attention_mask)
    if scored and not bool(kept.any()):
        given = bool(tokens.loss_mask.equal(tokens.attention_mask))
        raise TokensError(
            f"{where}: no token to score: {'the sequences hold none' if given else 'the mask keeps none'} after the "
            "first position, which has no logits before it."
        )
    return replace(tokens, loss_mask=kept)


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
