"""Writes results: completely or not at all, and never over anything but an older result.

A result is written to a temporary file beside its path, which is renamed at the end. Every writer holds a shared lock
on the folder. Temporary files in a folder that nobody holds were left by killed runs, and the next writer removes them.
The files themselves can't be locked, since safetensors replaces them.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from moeparity import paths
from moeparity.errors import MoeparityError, Where, display_path
from moeparity.progress import on_interruption

if TYPE_CHECKING:
    import torch

_PREFIX = ".moeparity-"
_MODE = 0o666
_SURROGATES = "backslashreplace"
"""How names of files that can't be encoded are written: their bytes as in JSON."""


def refuse_unwritable(path: Path) -> None:
    """Refuse, before a run, a path that could not be written after it. Raises MoeparityError.

    An existing path has to be a regular file: a link, a pipe or a device would be replaced by a file.
    """
    reason = _defect(path)
    if reason is not None:
        raise MoeparityError(
            f"{Where(path)}: cannot be written: {reason}. Name a new file, or one to replace, in a writable folder."
        )


def refuse_clashes(outputs: Mapping[str, Path]) -> None:
    """Refuse outputs that can't be written, or two that are the same file; keys are their options. Raises
    MoeparityError.
    """
    options: dict[tuple[int, int, str], str] = {}
    for option, path in outputs.items():
        refuse_unwritable(path)
        folder = path.parent.stat()
        key = folder.st_dev, folder.st_ino, path.name
        if key in options:
            raise MoeparityError(
                f"{options[key]} and {option} are both {display_path(path)}; the one would write over the other. Name "
                "two files."
            )
        options[key] = option


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically. Raises MoeparityError if that is impossible."""
    write_whole(path, lambda temporary: temporary.write_text(text + "\n", "utf-8", _SURROGATES))


def write_tensors(path: Path, tensors: dict[str, torch.Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file atomically; equal tensors give equal bytes. Raises MoeparityError if that is
    impossible.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    def save(temporary: Path) -> None:
        save_file(tensors, temporary, metadata)
        if metadata:
            _sort_metadata(temporary)

    try:
        write_whole(path, save)
    except SafetensorError as error:
        raise MoeparityError(f"{Where(path)}: cannot be written: {error}. Is the disk full?") from None


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file with the same ending, then rename it to `path`. Raises MoeparityError for
    errors of the file system.
    """
    refuse_unwritable(path)
    try:
        _remove_leavings(path.parent)
        with _temporary(path) as temporary:
            write(temporary)
            temporary.chmod(_MODE & ~_umask())
            temporary.replace(path)
    except OSError as error:
        raise MoeparityError(
            f"{Where(path)}: cannot be written: {error.strerror or error}. Check the folder."
        ) from None


def _sort_metadata(path: Path) -> None:
    """Write a safetensors file's metadata sorted by key; the library's own order differs between processes."""
    with path.open("r+b") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        sorted_header = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode().ljust(size)
        assert len(sorted_header) == size, "the same JSON in another order"
        file.seek(8)
        file.write(sorted_header)


def _defect(path: Path) -> str | None:
    try:
        kind = path.lstat().st_mode if paths.present(path) else None
        if kind is not None and not stat.S_ISREG(kind):
            links = stat.S_ISLNK(kind)
            kind_found = "a folder" if stat.S_ISDIR(kind) else "a link" if links else "no regular file"
            return f"it is {kind_found}"
        if not path.parent.is_dir():
            return f"there is no folder {display_path(path.parent)}"
        if not os.access(path.parent, os.W_OK | os.X_OK):
            return f"the folder {display_path(path.parent)} is read-only"
        if len(os.fsencode(path.name)) > os.pathconf(path.parent, "PC_NAME_MAX"):
            return "its name is too long"
    except (OSError, ValueError) as error:
        return getattr(error, "strerror", None) or str(error)
    return None


@contextmanager
def _temporary(path: Path) -> Iterator[Path]:
    """A new temporary file beside `path`; the folder is held while it is in use. Removed at the end unless it was
    renamed.
    """
    created: list[Path] = []
    holds: list[int] = []

    def discard() -> None:
        for temporary in created:
            temporary.unlink(missing_ok=True)
        while holds:
            os.close(holds.pop())

    def interrupted() -> None:
        discard()
        # The file may exist already without this process knowing its name.
        _remove_leavings(path.parent)

    with on_interruption(interrupted):
        try:
            with suppress(OSError):  # a file system without locks, or a folder that may be written and not read
                holds.append(os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY))
                fcntl.flock(holds[0], fcntl.LOCK_SH)
            number, name = tempfile.mkstemp(prefix=_PREFIX, suffix=path.suffix, dir=path.parent)
            created.append(Path(name))
            holds.append(number)
            yield created[0]
        finally:
            discard()


def _remove_leavings(folder: Path) -> None:
    """Remove the temporary files of killed runs from a folder in which nobody is writing now."""
    leavings = list(folder.glob(f"{_PREFIX}*"))
    if not leavings:
        return
    with suppress(OSError):
        number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for name in leavings:
                name.unlink(missing_ok=True)
        finally:
            os.close(number)


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
