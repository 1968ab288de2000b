"""One process at a time in a run's folder: the system takes the hold away when the process ends, however it does."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from moeparity import paths
from moeparity.bisection.runs.file import LOCK, NAME
from moeparity.errors import RunError, Where
from moeparity.progress import on_interruption

_TRIES, _PAUSE = 4, 0.05
"""Whoever only looks at a lock (`holder`) holds it for a moment, too. Seconds."""


def utc_time() -> str:
    """The time, ISO 8601 in UTC, whole seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Make the folder and hold it; one that nothing was kept in is gone afterwards.

    Raises RunError where another process holds it, or it cannot be used.
    """
    new_folders = [path for path in (folder, *folder.parents) if not paths.present(path)]
    number = -1

    def release() -> None:
        if number >= 0 and not (folder / NAME).exists():
            (folder / LOCK).unlink(missing_ok=True)
            with suppress(OSError):
                for path in new_folders:
                    path.rmdir()

    try:
        folder.mkdir(parents=True, exist_ok=True)
        number = _lock_descriptor(folder)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RunError(
            f"--run {Where(folder)}: cannot be used: {reason}. Name a folder that you may write to."
        ) from None
    with on_interruption(release):
        try:
            yield
        finally:
            release()
            os.close(number)


def holder(folder: Path) -> str | None:
    """Who holds a run's folder, in words; None where nobody does."""
    try:
        number = os.open(folder / LOCK, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(number, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _holder_words(os.pread(number, 1000, 0))
    except OSError:
        return None
    finally:
        os.close(number)
    return None


def _lock_descriptor(folder: Path) -> int:
    """The descriptor of the folder's lock, held, with who holds it written in."""
    path, tries = folder / LOCK, 0
    while True:
        number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            there = path.stat() if path.exists() else None
        except BlockingIOError:
            words, tries = _holder_words(os.pread(number, 1000, 0)), tries + 1
            os.close(number)
            if tries < _TRIES:
                time.sleep(_PAUSE)
                continue
            raise RunError(
                f"--run {Where(folder)}: {words} is at work in it. Wait until it has ended, or name another folder."
            ) from None
        except OSError:
            os.close(number)
            raise
        if there is not None and there.st_ino == os.fstat(number).st_ino:
            break
        # Another run has let go of it, and removed it, in between.
        os.close(number)
    os.ftruncate(number, 0)
    os.pwrite(number, json.dumps({"process": os.getpid(), "host": platform.node(), "since": utc_time()}).encode(), 0)
    return number


def _holder_words(text: bytes) -> str:
    try:
        data = json.loads(text)
        return f"process {int(data['process'])} on {data['host']}, since {data['since']},"
    except (ValueError, KeyError, TypeError):
        return "another process"
