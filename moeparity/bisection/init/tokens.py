"""The tokens of a starting recipe: text where it can be tokenized, else random ids."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path

from moeparity.bisection.init.prompts import PROMPTS
from moeparity.errors import TokensError, Where
from moeparity.inputs.tokens.tokenizer import open_tokenizer

LENGTH = 12
"""Tokens of a random prompt: about as many as the text prompts have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompts:
    """A file of JSON lines, the tokenizer it needs, and a comment on what it is."""

    lines: str
    tokenizer: str | None
    comment: str


def prompts(checkpoint: Path, vocab_size: int) -> Prompts:
    """Prompts for a checkpoint; each is a sequence, so that there are enough for a verdict.

    Text if the folder has a tokenizer.json that can be read and stays inside the vocabulary; else random ids.
    """
    reason = _obstacle(checkpoint, vocab_size)
    if reason is None:
        lines = [json.dumps({"text": text}, ensure_ascii=False) for text in PROMPTS]
        comment = f"{len(lines)} short prompts; put your own here"
        return Prompts(lines="\n".join(lines), tokenizer="checkpoint", comment=comment)
    generator = random.Random(0)  # noqa: S311  (no secret)
    rows = [[generator.randrange(vocab_size) for _ in range(LENGTH)] for _ in PROMPTS]
    lines = [json.dumps({"input_ids": row}) for row in rows]
    comment = f"{len(lines)} prompts of random ids, which are no text, since {reason}"
    return Prompts(lines="\n".join(lines), tokenizer=None, comment=comment)


def _obstacle(checkpoint: Path, vocab_size: int) -> str | None:
    """Why the text prompts can't be used; None where they can."""
    if not (checkpoint / "tokenizer.json").is_file():
        return "the checkpoint has no tokenizer.json"
    try:
        tokenizer = open_tokenizer("checkpoint", Where(checkpoint), checkpoint)
    except TokensError as error:
        return str(error).partition(": ")[2].rstrip(".")
    ids = [tokenizer.encode(text) for text in PROMPTS]
    if not all(ids) or max(max(row) for row in ids) >= vocab_size:
        return "its tokenizer.json makes ids outside the vocabulary of config.json, or none"
    return None
