"""One file per finished pass, in a folder named by a fingerprint of everything that decides the result."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open

from moeparity import paths
from moeparity.bisection.resume.codec import Codec, CodecError
from moeparity.errors import MoeparityError, display_path
from moeparity.output.writing import write_tensors
from moeparity.progress import on_interruption

FORMAT = "moeparity.pass/1"
_log = logging.getLogger("moeparity")


def cache_folder() -> Path:
    """`$MOEPARITY_CACHE`, else `~/.cache/moeparity`."""
    folder = os.environ.get("MOEPARITY_CACHE")
    return Path(folder) if folder else Path.home() / ".cache" / "moeparity"


class Passes:
    """The finished passes of one run: `<cache>/passes/<fingerprint>/<name>.safetensors`.

    As a context manager: removed when the run finished, kept when an exception or a signal ended it, which then says
    so. What cannot be kept or read costs a line of the log "moeparity" (standard error, unless it is configured
    otherwise) and nothing else.
    """

    def __init__(self, fingerprint: str, codec: Codec, cache: Path | None = None) -> None:
        self.fingerprint, self.codec = fingerprint, codec
        self.folder = (cache or cache_folder()) / "passes" / fingerprint

    def load(self, name: str) -> Any | None:
        """What was saved under that name by a run with this fingerprint; None where there is nothing to trust."""
        path = self._path(name)
        if not paths.present(path):
            return None
        try:
            paths.checked(path)
            with safe_open(str(path), framework="pt") as file:
                metadata = file.metadata() or {}
                tensors = {key: file.get_tensor(key).clone() for key in file.keys()}  # noqa: SIM118
            self._check(metadata, tensors)
            return self.codec.decode(json.loads(metadata["state"]), tensors)
        except (OSError, SafetensorError, CodecError, ValueError, KeyError, RecursionError) as error:
            reason = str(error).splitlines()[0][:200]
            _log.warning("%s: ignored, it is no pass of this run: %s", display_path(path), reason)
            return None

    def save(self, name: str, observed: object) -> None:
        """Keep what a pass saw, atomically."""
        path = self._path(name)
        plain, tensors = self.codec.encode(observed)
        state = json.dumps(plain, allow_nan=False)
        metadata = {"format": FORMAT, "fingerprint": self.fingerprint, "state": state}
        metadata["sha256"] = _digest(state, tensors)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_tensors(path, tensors, metadata)
        except (OSError, MoeparityError) as error:
            _log.warning("%s: not kept, a killed run would start anew: %s", display_path(path), error)

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.safetensors"

    def _check(self, metadata: dict[str, str], tensors: dict[str, torch.Tensor]) -> None:
        for key, value in (("format", FORMAT), ("fingerprint", self.fingerprint)):
            if metadata.get(key) != value:
                raise CodecError(f"its {key} is {metadata.get(key)!r}, not {value!r}")
        if metadata.get("sha256") != _digest(metadata.get("state", ""), tensors):
            raise CodecError("its checksum does not fit: the file is damaged")

    def __enter__(self) -> Self:
        self._interruption = on_interruption(self._notice)
        self._interruption.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            shutil.rmtree(self.folder, ignore_errors=True)
        elif note := self._notice():
            error.add_note(note)
        self._interruption.__exit__(kind, error, trace)

    def _notice(self) -> str | None:
        count = len(list(self.folder.glob("*.safetensors")))
        if not count:
            return None
        passes = f"{count} finished pass is" if count == 1 else f"{count} finished passes are"
        return f"{passes} kept in {display_path(self.folder)}: the same command goes on from there."


def _digest(state: str, tensors: dict[str, torch.Tensor]) -> str:
    digest = hashlib.sha256(state.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
