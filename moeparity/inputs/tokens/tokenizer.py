"""Turns text into token ids. Nothing is added: no BOS, no EOS, no template."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from moeparity import paths
from moeparity.errors import TokensError, Where, did_you_mean, display_path, shown
from moeparity.plan.config import Config

INSTALL = "pip install 'moeparity[tokenizer]'"


class Tokenizer(Protocol):
    """Turns text into ids, and an id into its text."""

    def encode(self, text: str) -> list[int]:
        """The ids of the text alone."""
        ...

    def piece(self, token: int) -> str:
        """The text of one id, as the vocabulary spells it."""
        ...


class Bytes:
    """A tokenizer whose ids are the bytes of the UTF-8 text."""

    def encode(self, text: str) -> list[int]:
        """The bytes."""
        return list(text.encode("utf-8"))

    def piece(self, token: int) -> str:
        """The character of an ASCII byte; escaped if it is not visible."""
        if token == ord(" "):
            return "\\x20"
        return repr(bytes([token]))[2:-1] if 0 <= token < 256 else "no byte"


class FileTokenizer:
    """A tokenizer.json, read by the `tokenizers` package. Its own padding, truncation and templates are not applied."""

    def __init__(self, path: Path, where: Where) -> None:
        try:
            import tokenizers
        except ImportError:
            raise TokensError(
                f"{where}: the tokenizer {display_path(path)} needs the package `tokenizers`. Run: {INSTALL}"
            ) from None
        if not paths.present(path):
            raise TokensError(
                f"{where}: there is no tokenizer file {display_path(path)}. Name a tokenizer.json, use `bytes`, or "
                "give `input_ids` in place of `text`."
            )
        try:
            raw = paths.contents(path, "tokenizer.json")
        except OSError as error:
            raise TokensError(f"{where}: {display_path(path)}: cannot be read: {error.strerror}.") from None
        try:
            self._inner: Any = tokenizers.Tokenizer.from_buffer(raw)
        except Exception as error:  # noqa: BLE001  (tokenizers raises bare Exception)
            raise TokensError(f"{where}: {display_path(path)} is no tokenizer.json: {_reason(error)}.") from None
        self._inner.no_padding()
        self._inner.no_truncation()
        self._name = f"{where}: {display_path(path)}"

    def encode(self, text: str) -> list[int]:
        """The ids of the text without special tokens; those the text itself spells out are kept."""
        try:
            return list(self._inner.encode(text, add_special_tokens=False).ids)
        except Exception as error:  # noqa: BLE001  as above, for a vocabulary that lacks what it falls back to
            raise TokensError(f"{self._name} does not take the text {shown(text)}: {_reason(error)}.") from None

    def piece(self, token: int) -> str:
        """The entry of the vocabulary."""
        return self._inner.id_to_token(token) or "not in the vocabulary"


def _reason(error: Exception) -> str:
    return str(error).splitlines()[0].removeprefix("Cannot instantiate Tokenizer from buffer: ")[:200]


def open_tokenizer(name: str, where: Where, checkpoint: Path | None) -> Tokenizer:
    """The tokenizer `bytes`, `checkpoint` (its own tokenizer.json), or a path to a tokenizer.json, relative to the file
    at `where`.

    Raises TokensError for a vocabulary smaller than 256 with `bytes`, a missing file or package, and a file that is not
    a tokenizer.
    """
    if name == "bytes":
        _check_bytes_fit(where, checkpoint)
        return Bytes()
    if name == "checkpoint":
        if checkpoint is None:
            raise TokensError(f"{where}: tokenizer 'checkpoint' needs a checkpoint folder. Name it with --checkpoint.")
        return FileTokenizer(checkpoint / "tokenizer.json", where)
    path = where.path.parent / name
    if not name.endswith(".json") and not paths.present(path):
        words = ("bytes", "checkpoint")
        raise TokensError(
            f"{where}: tokenizer {name!r} is neither `bytes`, `checkpoint` nor a path to a tokenizer.json."
            f"{did_you_mean(name, words)}"
        )
    return FileTokenizer(path, where)


def _check_bytes_fit(where: Where, checkpoint: Path | None) -> None:
    if checkpoint is None:
        return
    size = Config(checkpoint / "config.json")["vocab_size"]
    if isinstance(size, int) and size < 256:
        raise TokensError(
            f"{where}: tokenizer `bytes` needs a vocabulary of at least 256, one id per byte; that of "
            f"{display_path(checkpoint)} is {size}."
        )
