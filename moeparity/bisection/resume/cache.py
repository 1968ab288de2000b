"""The user's own folder for what is kept between runs: who may write there, the key that signs it, and its end."""

from __future__ import annotations

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
    with suppress(FileExistsError):
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(number, "wb") as file:
            file.write(secrets.token_bytes(_KEY_BYTES))
    with paths.opened(path) as opened:
        key = opened.read(_KEY_BYTES + 1)
    if len(key) != _KEY_BYTES:
        # A run that was killed as it wrote the key; what it signed is gone with it.
        path.unlink(missing_ok=True)
        raise paths.UnreadableError("its key was half-written and has been removed")
    return key


def _evict(passes: Path) -> None:
    oldest = time.time() - KEPT_DAYS * 24 * 3600
    for folder in passes.glob("*"):
        with suppress(OSError):
            if not folder.is_symlink() and folder.stat().st_mtime < oldest:
                shutil.rmtree(folder, ignore_errors=True)
