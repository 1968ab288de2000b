"""Turns text into token ids. Nothing is added: no BOS, no EOS, no template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive tokens that together add a text of whole characters; one token, unless a character is spread over
    several. text: what they add. end: the index behind the last of them.
    """

    text: str
    end: int


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

    def is_special(self, token: int) -> bool:
        """Whether no text that is tokenised as plain text may give this id, as the marks of a chat template."""
        added = self._inner.get_added_tokens_decoder().get(token)
        return added is not None and added.special

    def pieces(self, ids: Sequence[int]) -> list[Piece]:
        """The ids cut at the borders of whole characters. Bytes that are no text stand in it as U+FFFD.

        Raises TokensError for an id outside the vocabulary, and for a tokenizer whose text of all ids is not that of
        its pieces.
        """
        from tokenizers.decoders import DecodeStream

        unknown = next((token for token in ids if self._inner.id_to_token(token) is None), None)
        if unknown is not None:
            raise TokensError(f"{self._name} has no token {unknown}. Give the tokenizer that made these ids.")
        stream = DecodeStream(skip_special_tokens=False)
        whole = self._inner.decode(list(ids), skip_special_tokens=False)
        try:
            texts = [stream.step(self._inner, token) for token in ids]
        except Exception as error:  # noqa: BLE001  as above, where a decoder rewrites text that it gave before
            raise TokensError(f"{self._name} does not give its text piece by piece: {_reason(error)}.") from None
        pieces = [Piece(text, place + 1) for place, text in enumerate(texts) if text is not None]
        text = "".join(piece.text for piece in pieces)
        if not whole.startswith(text):
            raise TokensError(f"{self._name} gives another text of all ids than of one after the other.")
        if not pieces or pieces[-1].end < len(ids):
            pieces.append(Piece(whole[len(text) :], len(ids)))
        return pieces


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
