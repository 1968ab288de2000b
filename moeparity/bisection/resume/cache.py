"""The user's own folder for what is kept between runs: who may write there, the key that signs it, and its end."""

from __future__ import annotations

import fcntl
import os
import pwd
import secrets
import shutil
import stat
import time
from contextlib import suppress
from pathlib import Path

from moeparity import paths

KEPT_DAYS = 30
"""Days after which what a killed run left is removed by the next."""
_KEY_BYTES = 32


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


def prepared(folder: Path) -> bytes:
    """Make the folder ready and return the key that signs what is kept there; what is old is removed.

    Raises OSError where it cannot be used, also for a folder that others may write to: they could put there what a
    run then takes for its own.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    status = folder.stat()
    if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise paths.UnreadableError("others may write to it; chmod go-w makes it yours alone")
    _evict(folder / "passes")
    return _key(folder / "key")


def _key(path: Path) -> bytes:
    """The key, made by the first run that finds none, or half of one; another run that comes meanwhile waits for it."""
    if paths.present(path):
        paths.checked(path)
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600), "r+b") as file:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        key = file.read(_KEY_BYTES + 1)
        if len(key) != _KEY_BYTES:
            # What half a key signed is gone with it.
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
