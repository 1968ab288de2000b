"""Files as the file system has them: the one place that looks at a path, opens it or reads it whole.

A path may be missing, another user's, a link to itself, a pipe or a device that never ends, longer than names may be,
or the very file that the run is to write. All of that comes out of here as an OSError whose `strerror` says it, so that
readers add only what they expected; nothing here waits for a pipe, and nothing reads more than its limit.
"""

from __future__ import annotations

import errno
import os
import pwd
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from moeparity.errors import MoeparityError, Where
from moeparity.limits import number

LIMIT_FACTOR = "MOEPARITY_LIMITS"
"""An environment variable: a number that every limit on what is read is multiplied by."""

LIMITS = {
    "YAML file": 1_000_000,
    "launch configuration": 1_000_000,
    "config.json": 16_000_000,
    "index of shards": 256_000_000,
    "tokenizer.json": 256_000_000,
    "token file of JSON lines": 256_000_000,
    "recorded batches": 64_000_000,
    "drafts": 64_000_000,
    "baseline": 256_000_000,
    "token file of tensors": 4_000_000_000,
    "file of recorded routes": 4_000_000_000,
    "log that is one JSON document": 256_000_000,
    "line of a log": 256_000_000,
    "log once unpacked": 256_000_000_000,
    "PTX file": 256_000_000,
    "torch.save": 64_000_000_000,
    "run.json": 16_000_000,
    "file of a run": 4_000_000_000,
    "head of a trace": 16_000_000,
    "line of a trace": 64_000_000,
    "journal of a rank": 1_000_000_000,
    "fingerprint of weights": 64_000_000_000,
    "contract": 1_000_000_000,
    "rates of a machine": 1_000_000,
    "file of another tool": 1_000_000_000,
}
"""Bytes of what is read as a whole, and becomes several times that in memory; of what a packed file may unpack to."""

_KINDS = {
    stat.S_IFDIR: "it is a folder",
    stat.S_IFIFO: "it is a pipe, which can be read only once",
    stat.S_IFSOCK: "it is a socket",
    stat.S_IFCHR: "it is a device",
    stat.S_IFBLK: "it is a device",
}
_reserved: dict[tuple[int, int], tuple[str, Path]] = {}
_asked_for: set[tuple[int, int]] = set()
"""Reserved files that something wanted to read."""


class UnreadableError(OSError):
    """A file that is there, or was expected to be, and is not read; `strerror` says why."""

    def __init__(self, reason: str) -> None:
        super().__init__(errno.EINVAL, reason)


def limit(most: int) -> int:
    """A limit as it holds in this process: `most`, times the number in the environment. Raises MoeparityError."""
    factor = number(LIMIT_FACTOR, 1, "a number above 0, such as 10, that limits are raised by")
    return int(most * factor)


def present(path: Path) -> bool:
    """Whether anything is there, also what may not be looked at: opening it says why."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a NUL in the name
        return False
    except OSError as error:
        return error.errno != errno.ENAMETOOLONG
    return True


def is_file(path: Path) -> bool:
    """Whether it is a regular file that can be looked at."""
    return _is(path, stat.S_ISREG)


def is_folder(path: Path) -> bool:
    """Whether it is a folder that can be looked at."""
    return _is(path, stat.S_ISDIR)


def checked(path: Path) -> os.stat_result:
    """The status of a regular file that may be read, for libraries that open it by name.

    Raises OSError for anything else, and MoeparityError for a file that this run is asked to write.
    """
    try:
        status = path.stat()
    except ValueError:
        raise UnreadableError("no file can have such a name") from None
    kind = stat.S_IFMT(status.st_mode)
    if kind != stat.S_IFREG:
        raise UnreadableError(_KINDS.get(kind, "it is no regular file"))
    key = status.st_dev, status.st_ino
    if key in _reserved:
        _asked_for.add(key)
        option, output = _reserved[key]
        raise MoeparityError(
            f"{option} {Where(output)}: this run reads that file, and would write over it. Name another file."
        )
    return status


def opened(path: Path, buffering: int = -1) -> IO[bytes]:
    """A regular file, open for reading. Raises as `checked`."""
    checked(path)
    return path.open("rb", buffering=buffering)


def contents(path: Path, role: str) -> bytes:
    """All bytes of a file, which may have as many as `LIMITS` says of what it is. Raises as `checked`."""
    _, allowed = measured(path, role)
    with path.open("rb") as file:
        # Files under /proc say that they hold nothing.
        data = file.read(allowed + 1)
    if len(data) > allowed:
        raise _too_large(len(data), allowed)
    return data


def measured(path: Path, role: str) -> tuple[int, int]:
    """The bytes of a file and how many it may have. Raises as `checked`, and for more."""
    size, allowed = checked(path).st_size, limit(LIMITS[role])
    if size > allowed:
        raise _too_large(size, allowed)
    return size, allowed


def _too_large(size: int, allowed: int) -> UnreadableError:
    return UnreadableError(f"it holds {size:,} bytes; at most {allowed:,} are read ({LIMIT_FACTOR} raises that)")


def cache_folder() -> Path | None:
    """`$MOEPARITY_CACHE`, else `$XDG_CACHE_HOME/moeparity`, else `~/.cache/moeparity`; None without a home."""
    if folder := os.environ.get("MOEPARITY_CACHE"):
        return Path(folder)
    shared = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if shared.is_absolute():
        return shared / "moeparity"
    home = Path(os.environ.get("HOME", ""))
    if not home.is_absolute():
        try:
            home = Path(pwd.getpwuid(os.getuid()).pw_dir)
        except KeyError:
            return None
    return home / ".cache" / "moeparity"


@contextmanager
def reserved(outputs: Mapping[str, Path]) -> Iterator[None]:
    """While the context lasts, a file at one of these paths, which an option names as output, may not be read: it will
    be overwritten.
    """
    before = dict(_reserved)
    for option, path in outputs.items():
        if is_file(path):
            status = path.stat()
            _reserved[status.st_dev, status.st_ino] = option, path
    try:
        yield
    finally:
        _asked_for.intersection_update(before)
        _reserved.clear()
        _reserved.update(before)


def refuse_asked_for(option: str, path: Path) -> None:
    """Refuse to write a reserved file that the run wanted to read, whatever became of that refusal: of several recipes
    one that cannot be read stops no other. Raises MoeparityError.
    """
    status = path.stat() if is_file(path) else None
    if status is not None and (status.st_dev, status.st_ino) in _asked_for:
        raise MoeparityError(f"{option} {Where(path)}: not written, since this run reads that file. Name another file.")


def _is(path: Path, kind: Callable[[int], bool]) -> bool:
    try:
        return kind(path.stat().st_mode)
    except (OSError, ValueError):
        return False
