"""A tokenizer made by hand: a byte-level BPE with `ab`, `abc` and `é` among its tokens, and two special ones."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

IMAGE, END = "<|image_pad|>", "<|im_end|>"


def tokenizer_file(folder: Path, letters: str = "") -> Path:
    """The tokenizer, written. letters: its alphabet; all bytes by default."""
    alphabet = sorted(letters or pre_tokenizers.ByteLevel.alphabet())
    merges = [("a", "b"), ("ab", "c")] if letters else [("a", "b"), ("ab", "c"), ("Ã", "©")]
    words = [IMAGE, END, *alphabet, *("".join(merge) for merge in merges)]
    inner = Tokenizer(models.BPE(vocab={word: number for number, word in enumerate(words)}, merges=merges))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([IMAGE, END])
    path = folder / "tokenizer.json"
    inner.save(str(path))
    return path


def ids(path: Path, *words: str) -> list[int]:
    """The ids of entries of the vocabulary."""
    vocabulary = Tokenizer.from_file(str(path)).get_vocab()
    return [vocabulary[word] for word in words]
