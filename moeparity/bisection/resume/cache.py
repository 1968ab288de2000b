"""The user's cache folder: who may write to it, the key that signs its files, and when files are removed."""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import stat
import time
from contextlib import suppress
from pathlib import Path

from moeparity import paths

KEPT_DAYS = 30
"""What a killed run left is removed by the next run after this many days."""
_KEY_BYTES = 32


def prepared(folder: Path) -> bytes:
    """Make the folder ready, remove old files, and return the key that signs what is kept there.

    Raises OSError if the folder cannot be used, also if others may write to it: they could put a file there that a run
    would take for its own.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    status = folder.stat()
    if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise paths.UnreadableError("others may write to it; chmod go-w makes it yours alone")
    _evict(folder / "passes")
    return _key(folder / "key")


def _key(path: Path) -> bytes:
    """The key. The first run that finds none, or only half of one, makes it; a run that comes meanwhile waits."""
    if paths.present(path):
        paths.checked(path)
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600), "r+b") as file:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        key = file.read(_KEY_BYTES + 1)
        if len(key) != _KEY_BYTES:
            # Files signed with half a key can't be read any more.
            key = secrets.token_bytes(_KEY_BYTES)
            file.seek(0)
            file.truncate()
            file.write(key)
    return key


def _evict(passes: Path) -> None:
    oldest = time.time() - KEPT_DAYS * 24 * 3600
    for folder in passes.glob("*"):
        with suppress(OSError):
            if not folder.is_symlink() and folder.stat().st_mtime < oldest:
                shutil.rmtree(folder, ignore_errors=True)
