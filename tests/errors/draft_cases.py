"""Drafts that do not fit their tokens, files of drafts, and ids that a tokenizer does not give as text."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest.mock import patch

import torch
from tokenizers import Tokenizer, decoders, models

from moeparity.errors import Where
from moeparity.inputs.tokens.drafted import read_drafts, with_drafts
from moeparity.inputs.tokens.tokenizer import FileTokenizer
from moeparity.inputs.tokens.tokenset import TokenSet
from moeparity.plan.schedule.drafts import verified

HERE = Where(Path("drafts.jsonl"))


def _verified(drafts: Sequence[Sequence[int]], prompt: int = 2, *, flat: bool = False) -> object:
    return verified([[1, 2, 3, 4, 5]], [prompt], [drafts], HERE, flat=flat)


def _read(*lines: str) -> object:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "drafts.jsonl"
        path.write_text("\n".join(lines))
        with patch("moeparity.inputs.tokens.drafted.Where", lambda _, number=None: Where(HERE.path, number)):
            return read_drafts(path, 2)


def _padded_in_front() -> object:
    ids, real = torch.ones(1, 3, dtype=torch.int64), torch.tensor([[False, True, True]])
    return with_drafts(TokenSet(input_ids=ids, loss_mask=real, attention_mask=real), "3:0.5", flat=True)


def _tokenizer(decoder: decoders.Decoder) -> FileTokenizer:
    inner = Tokenizer(models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?"))  # noqa: S106
    inner.decoder = decoder
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokenizer.json"
        inner.save(str(path))
        tokenizer = FileTokenizer(path, HERE)
    tokenizer._name = "tokenizer.json"
    return tokenizer


_REWRITES = decoders.Sequence([decoders.Fuse(), decoders.Replace("ab", "x")])
CALLS: dict[str, Callable[[], object]] = {
    "python-drafts-without-a-prompt": lambda: _verified([[]], 0),
    "python-drafts-of-too-many-steps": lambda: _verified([[], [4, 5], []]),
    "python-drafts-of-too-few-steps": lambda: _verified([[]]),
    "python-drafts-beside-a-prompt-of-a-server": lambda: _verified([[3, 4]], flat=True),
    "python-drafts-of-padding-in-front": _padded_in_front,
    "python-drafts-not-there": lambda: read_drafts(Path("nowhere.jsonl"), 2),
    "python-drafts-of-fewer-sequences": lambda: _read("[[]]"),
    "python-drafts-of-no-lists": lambda: _read("[[]]", "[5, 7]"),
    "python-drafts-of-no-ids": lambda: _read("[[]]", "[[-1]]"),
    "python-tokenizer-without-an-id": lambda: _tokenizer(decoders.Fuse()).pieces([0, 7]),
    "python-tokenizer-that-rewrites-its-text": lambda: _tokenizer(_REWRITES).pieces([0, 1, 0]),
    "python-tokenizer-of-another-text-together": lambda: _tokenizer(_REWRITES).pieces([0, 1]),
}
