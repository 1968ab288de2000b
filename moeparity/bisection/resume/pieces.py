"""Keeps finished pieces of a run, one file each, in a folder named by a fingerprint of all that decides the result."""

from __future__ import annotations

import hmac
import json
import logging
import secrets
import shutil
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open

from moeparity import paths
from moeparity.bisection.resume.cache import prepared
from moeparity.bisection.resume.codec import Codec, CodecError
from moeparity.errors import MoeparityError, display_path
from moeparity.output.writing import write_tensors
from moeparity.progress import on_interruption

FORMAT = "moeparity.pass/2"
# torch maps a file by its name (RuntimeError); another run may have removed the file by then.
_UNREADABLE = (OSError, SafetensorError, CodecError, ValueError, KeyError, RuntimeError)
_UNUSABLE = "%s: no pass is kept there, a killed run would start anew: %s"
_log = logging.getLogger("moeparity")


class PieceStore:
    """The finished pieces of one run, as `<folder>/passes/<fingerprint>/<name>.safetensors`. The folder is that of
    `run`, if it is kept, else the user's cache.

    As a context manager: pieces in the cache are removed if the run finished, and kept if an exception or a signal
    ended it, with a note on that. A piece that can't be kept or read is only reported in the log "moeparity" (standard
    error by default).
    """

    def __init__(self, fingerprint: str, codec: Codec, cache: Path | None = None, *, run: Path | None = None) -> None:
        self.fingerprint, self.codec, self._lasts = fingerprint, codec, run is not None
        cache = cache or paths.cache_folder()
        folder = run or cache
        self.folder = None if folder is None else folder / "passes" / fingerprint
        # Pieces are signed with the user's own key; without one, with a key that no other process has.
        self._key = secrets.token_bytes(32)
        if cache is not None:
            try:
                self._key = prepared(cache)
            except OSError as error:
                _log.warning(_UNUSABLE, display_path(cache), error.strerror)
                self.folder = None if run is None else self.folder

    def load(self, name: str) -> Any | None:
        """What a run with this fingerprint saved under that name; None if there is nothing, or nothing that can be
        trusted.
        """
        path = self.path(name)
        if path is None or not paths.present(path):
            return None
        try:
            metadata, tensors = _contents(path)
            self._check(metadata, tensors)
            return self.codec.decode(json.loads(metadata["state"]), tensors)
        except _UNREADABLE as error:
            reason = str(error).splitlines()[0][:200]
            _log.warning("%s: ignored, it is no pass of this run: %s", display_path(path), reason)
            return None

    def save(self, name: str, piece: object) -> None:
        """Keep a piece, such as what a pass saw; the file is written atomically."""
        path = self.path(name)
        if path is None:
            return
        plain, tensors = self.codec.encode(piece)
        state = json.dumps(plain, allow_nan=False)
        metadata = {"format": FORMAT, "fingerprint": self.fingerprint, "state": state}
        metadata["hmac"] = self._sign(state, tensors)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_tensors(path, tensors, metadata)
        except (OSError, MoeparityError) as error:
            _log.warning("%s: not kept, a killed run would start anew: %s", display_path(path), error)

    def has_any(self, beginning: str) -> bool:
        """Whether a piece is kept whose name begins with `beginning`."""
        return self.folder is not None and any(self.folder.glob(f"{beginning}*.safetensors"))

    def path(self, name: str) -> Path | None:
        """The file of a piece of that name, written or not; None if nothing can be kept."""
        return None if self.folder is None else self.folder / f"{name}.safetensors"

    def _check(self, metadata: dict[str, str], tensors: dict[str, torch.Tensor]) -> None:
        _expect(metadata, "format", FORMAT)
        _expect(metadata, "fingerprint", self.fingerprint)
        if not hmac.compare_digest(metadata.get("hmac", ""), self._sign(metadata.get("state", ""), tensors)):
            raise CodecError("its signature does not fit: it is damaged, or no run of this user wrote it")

    def _sign(self, state: str, tensors: dict[str, torch.Tensor]) -> str:
        digest = hmac.new(self._key, f"{self.fingerprint} {state}".encode(), "sha256")
        for name, tensor in sorted(tensors.items()):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def __enter__(self) -> Self:
        self._interruption = on_interruption(self._notice)
        self._interruption.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and self.folder is not None and not self._lasts:
            shutil.rmtree(self.folder, ignore_errors=True)
        elif error is not None and (note := self._notice()):
            error.add_note(note)
        self._interruption.__exit__(kind, error, trace)

    def _notice(self) -> str | None:
        count = 0 if self.folder is None else len(list(self.folder.glob("*.safetensors")))
        if self.folder is None or not count:
            return None
        pieces = f"{count} finished pass is" if count == 1 else f"{count} finished passes are"
        return f"{pieces} kept in {display_path(self.folder)}: the same command goes on from there."


def read_piece(path: Path, codec: Codec) -> Any:
    """The contents of a piece without a check of its signature, for a file that is known by its digest. Raises
    CodecError.
    """
    try:
        metadata, tensors = _contents(path)
        _expect(metadata, "format", FORMAT)
        return codec.decode(json.loads(metadata["state"]), tensors)
    except _UNREADABLE as error:
        raise CodecError(next(iter(str(error).splitlines()), "")[:200]) from None


def _contents(path: Path) -> tuple[dict[str, str], dict[str, torch.Tensor]]:
    """The metadata and the tensors of a safetensors file."""
    paths.checked(path)
    with safe_open(str(path), framework="pt") as file:
        return file.metadata() or {}, {key: file.get_tensor(key).clone() for key in file.keys()}  # noqa: SIM118


def _expect(metadata: dict[str, str], key: str, value: str) -> None:
    if metadata.get(key) != value:
        raise CodecError(f"its {key} is {metadata.get(key)!r}, not {value!r}")
