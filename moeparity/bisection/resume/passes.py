"""One file per finished pass, in a folder named by a fingerprint of everything that decides the result."""

from __future__ import annotations

import hmac
import json
import logging
import shutil
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open

from moeparity import paths
from moeparity.bisection.resume.cache import cache_folder, prepared
from moeparity.bisection.resume.codec import Codec, CodecError
from moeparity.errors import MoeparityError, display_path
from moeparity.output.writing import write_tensors
from moeparity.progress import on_interruption

FORMAT = "moeparity.pass/2"
_UNUSABLE = "%s: no pass is kept there, a killed run would start anew: %s"
_log = logging.getLogger("moeparity")


class Passes:
    """The finished passes of one run: `<cache>/passes/<fingerprint>/<name>.safetensors`.

    As a context manager: removed when the run finished, kept when an exception or a signal ended it, which then says
    so. What cannot be kept or read costs a line of the log "moeparity" (standard error, unless it is configured
    otherwise) and nothing else.
    """

    def __init__(self, fingerprint: str, codec: Codec, cache: Path | None = None) -> None:
        self.fingerprint, self.codec = fingerprint, codec
        folder = cache or cache_folder()
        self.folder = None if folder is None else folder / "passes" / fingerprint
        self._key = b""
        if folder is not None:
            try:
                self._key = prepared(folder)
            except OSError as error:
                _log.warning(_UNUSABLE, display_path(folder), error.strerror)
                self.folder = None

    def load(self, name: str) -> Any | None:
        """What was saved under that name by a run with this fingerprint; None where there is nothing to trust."""
        path = self._path(name)
        if path is None or not paths.present(path):
            return None
        try:
            # torch maps a file by its name (RuntimeError), and a run beside this one may have removed it by then.
            paths.checked(path)
            with safe_open(str(path), framework="pt") as file:
                metadata = file.metadata() or {}
                tensors = {key: file.get_tensor(key).clone() for key in file.keys()}  # noqa: SIM118
            self._check(metadata, tensors)
            return self.codec.decode(json.loads(metadata["state"]), tensors)
        except (OSError, SafetensorError, CodecError, ValueError, KeyError, RuntimeError) as error:
            reason = str(error).splitlines()[0][:200]
            _log.warning("%s: ignored, it is no pass of this run: %s", display_path(path), reason)
            return None

    def save(self, name: str, observed: object) -> None:
        """Keep what a pass saw, atomically."""
        path = self._path(name)
        if path is None:
            return
        plain, tensors = self.codec.encode(observed)
        state = json.dumps(plain, allow_nan=False)
        metadata = {"format": FORMAT, "fingerprint": self.fingerprint, "state": state}
        metadata["hmac"] = self._sign(state, tensors)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_tensors(path, tensors, metadata)
        except (OSError, MoeparityError) as error:
            _log.warning("%s: not kept, a killed run would start anew: %s", display_path(path), error)

    def _path(self, name: str) -> Path | None:
        return None if self.folder is None else self.folder / f"{name}.safetensors"

    def _check(self, metadata: dict[str, str], tensors: dict[str, torch.Tensor]) -> None:
        for key, value in (("format", FORMAT), ("fingerprint", self.fingerprint)):
            if metadata.get(key) != value:
                raise CodecError(f"its {key} is {metadata.get(key)!r}, not {value!r}")
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
        if error is None and self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
        elif error is not None and (note := self._notice()):
            error.add_note(note)
        self._interruption.__exit__(kind, error, trace)

    def _notice(self) -> str | None:
        count = 0 if self.folder is None else len(list(self.folder.glob("*.safetensors")))
        if self.folder is None or not count:
            return None
        passes = f"{count} finished pass is" if count == 1 else f"{count} finished passes are"
        return f"{passes} kept in {display_path(self.folder)}: the same command goes on from there."
