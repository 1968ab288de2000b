"""Lets one process at a time use a run's folder. The lock is the system's, so it goes with the process, however it
ends.
"""

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
"""How often, and with which pause in seconds, to try the lock: `holder`, which only looks at it, takes it for a moment.
"""


def utc_time() -> str:
    """The time in UTC as ISO 8601, in whole seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Make the folder and hold it while the context lasts; remove it afterwards if nothing was kept in it.

    Raises RunError if another process holds it, or if it can't be used.
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
    """Who holds a run's folder, in words; None if nobody does."""
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
    """The descriptor of the folder's lock file, locked, with this process's name written into it."""
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
        # Meanwhile the other run has let go of the lock file and removed it.
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
