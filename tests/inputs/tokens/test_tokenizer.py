"""Tokenizers: bytes, a tokenizer.json, and what is said where there is none."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Inner
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from moeparity.errors import TokensError, Where
from moeparity.inputs.tokens.tokenizer import Bytes, open_tokenizer

UNKNOWN = "<unk>"
WORDS = {"<s>": 0, "the": 1, "cat": 2, "sat": 3, UNKNOWN: 4}


def make(path: Path) -> Path:
    """A tokenizer.json that by itself adds a BOS, pads to 8 and cuts at 2."""
    inner = Inner(WordLevel(WORDS, unk_token=UNKNOWN))
    inner.pre_tokenizer = Whitespace()
    inner.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    inner.enable_padding(length=8)
    inner.enable_truncation(2)
    inner.save(str(path))
    return path


def test_bytes() -> None:
    assert Bytes().encode("é\n") == [195, 169, 10]
    assert [Bytes().piece(token) for token in (10, 32, 65, 195, 300)] == ["\\n", "\\x20", "A", "\\xc3", "no byte"]


@pytest.mark.parametrize("name", ["checkpoint", "own/tokenizer.json"])
def test_a_tokenizer_file_adds_pads_and_cuts_nothing(tmp_path: Path, name: str) -> None:
    (tmp_path / "own").mkdir()
    make(tmp_path / ("tokenizer.json" if name == "checkpoint" else name))
    tokenizer = open_tokenizer(name, Where(tmp_path / "recipe.yaml"), tmp_path)
    assert tokenizer.encode("the cat sat") == [1, 2, 3]
    assert [tokenizer.piece(token) for token in (0, 3, 99)] == ["<s>", "sat", "not in the vocabulary"]


def test_a_missing_package_is_told_with_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path / "tokenizer.json")
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(
        TokensError, match=r"needs the package `tokenizers`\. Run: pip install 'moeparity\[tokenizer\]'"
    ):
        open_tokenizer("checkpoint", Where(tmp_path / "recipe.yaml"), tmp_path)


def test_bytes_need_a_vocabulary_of_256(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": "qwen3_moe", "vocab_size": 256}), "utf-8")
    assert isinstance(open_tokenizer("bytes", Where(config), tmp_path), Bytes)
    config.write_text(json.dumps({"model_type": "qwen3_moe", "vocab_size": 255}), "utf-8")
    with pytest.raises(TokensError, match=r"needs a vocabulary of at least 256, .* is 255"):
        open_tokenizer("bytes", Where(config), tmp_path)
