"""A checkpoint folder: config.json and safetensors files, single or sharded, mapped into memory and never copied.

Tensors are views of the mapped file, as `from_pretrained` of transformers leaves them. So their address modulo 64 is
that in the file, which changes the bits of some fp32 kernels on CPU.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from moeparity import paths
from moeparity.errors import CheckpointError, Where, did_you_mean
from moeparity.inputs.weights.source import Entry
from moeparity.progress import Callback, Progress

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json", "consolidated.00.pth", "model.pt")

_NUMBERS = re.compile(r"\d+")


class Checkpoint:
    """Reads a folder's tensors by name; `progress` is told of every file that is opened.

    constant: names of matrices in which all elements are equal; None until all values were read.

    Raises CheckpointError for everything that is wrong with its files.
    """

    def __init__(self, folder: Path, progress: Callback | None = None) -> None:
        self.folder = folder
        if not paths.present(folder):
            raise CheckpointError(f"{Where(folder)}: no such checkpoint folder. Check the path.")
        self.config_path = folder / "config.json"
        self._files: dict[Path, Any] = {}
        self.entries: dict[str, Entry] = {}
        self.handed_out = 0
        self.constant: tuple[str, ...] | None = None
        self.progress = progress
        index = folder / INDEX
        if paths.present(index):
            self._open_sharded(index)
        else:
            self._open_single()

    def tensor(self, name: str) -> Any:
        """The tensor as a view of the mapped file, in the file's dtype."""
        tensor = self._files[self.entries[name].file].get_tensor(name)
        self.handed_out += tensor.nbytes
        return tensor

    def require(self, name: str, needed_by: Where) -> Entry:
        """The entry of a tensor that must exist; raises CheckpointError, which names `needed_by`."""
        if name not in self.entries:
            # Suggest only names with the same numbers: another layer's or expert's tensor is nearest by spelling, but
            # not a typo.
            similar = [entry for entry in self.entries if _NUMBERS.findall(entry) == _NUMBERS.findall(name)]
            raise CheckpointError(
                f"{Where(self.folder)}: tensor {name!r} is missing; {needed_by} needs it."
                f"{did_you_mean(name, similar, cutoff=0.9)} Is the checkpoint complete, and does its model_type fit?"
            )
        return self.entries[name]

    def _open_single(self) -> None:
        path = self.folder / SINGLE
        if paths.present(path):
            self._open(path, None, None)
            return
        pickled = next((name for name in PICKLED if paths.present(self.folder / name)), None)
        if pickled:
            raise CheckpointError(
                f"{Where(self.folder / pickled)}: pickled weights are not read, since a pickle can run code. "
                "Convert them to safetensors with save_pretrained."
            )
        raise CheckpointError(f"{Where(self.folder)}: holds neither {SINGLE} nor {INDEX}. Is this a checkpoint folder?")

    def _open_sharded(self, index: Path) -> None:
        shards = _weight_map(index)
        for count, (shard, names) in enumerate(shards.items()):
            self._report(shard, count, len(shards))
            path = self.folder / shard
            if not _lies_in(self.folder, path):
                raise CheckpointError(f"{Where(index)}: weight_map points to {shard!r}, outside the checkpoint folder.")
            if not paths.present(path):
                raise CheckpointError(f"{Where(index)}: shard {shard!r} is missing from the folder. Download it again.")
            self._open(path, names, index)

    def _report(self, shard: str, done: int, total: int) -> None:
        if self.progress is not None:
            opened = len(self.entries)
            self.progress(
                Progress(step="opening the checkpoint", at=shard, done=done, total=total, work=opened, unit="tensors")
            )

    def _open(self, path: Path, names: Iterable[str] | None, index: Path | None) -> None:
        try:
            paths.checked(path)
            file = safe_open(str(path), framework="pt")
        except OSError as error:
            raise CheckpointError(f"{Where(path)}: cannot be read: {error.strerror or error}.") from None
        except SafetensorError as error:
            raise CheckpointError(
                f"{Where(path)}: not a whole safetensors file ({_reason(path, error)}). Download it again."
            ) from None
        self._files[path] = file
        stored_names = set(file.keys())
        for name in sorted(stored_names) if names is None else names:
            if name not in stored_names:
                raise CheckpointError(
                    f"{Where(index or path)}: weight_map puts {name!r} into {path.name!r}, which lacks it."
                )
            part = file.get_slice(name)
            self.entries[name] = Entry(file=path, dtype=part.get_dtype(), shape=tuple(part.get_shape()))


def _lies_in(folder: Path, path: Path) -> bool:
    """Whether a shard's path stays in its folder. Symbolic links may point elsewhere, as in the hub's cache."""
    try:
        is_below = path.is_symlink() or path.resolve().is_relative_to(folder.resolve())
    except (OSError, ValueError, RuntimeError):  # no such file can be, which is another complaint
        return True
    return is_below and ".." not in path.parts[len(folder.parts) :]


def _weight_map(index: Path) -> dict[str, list[str]]:
    """Shard name -> tensor names."""
    try:
        weight_map = json.loads(paths.contents(index, "index of shards"))["weight_map"]
        shards: dict[str, list[str]] = {}
        for name, shard in weight_map.items():
            shards.setdefault(str(shard), []).append(name)
    except OSError as error:
        raise CheckpointError(f"{Where(index)}: cannot be read: {error.strerror}.") from None
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        line = getattr(error, "lineno", None)
        raise CheckpointError(
            f"{Where(index, line)}: not a safetensors index; expected JSON with a `weight_map` of tensor names to file "
            "names. Download it again."
        ) from None
    return shards


def _reason(path: Path, error: Exception) -> str:
    with path.open("rb") as file:
        if file.read(19) == b"version https://git":
            return "it is a Git LFS pointer: run `git lfs pull`"
    text = str(error).splitlines()[0].removeprefix("Error while deserializing header: ")
    return f"{path.stat().st_size} bytes: {text[:200]}"
