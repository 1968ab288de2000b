"""The command line, installed as `moeparity.cli`. Commands are thin, and need no torch until they compute."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

if __name__ != "moeparity.cli":
    raise ImportError("import this package as moeparity.cli; `cli` is only where its source lies")

__all__ = ["main"]


def main() -> None:
    """The console script. It imports the commands itself, so that neither a signal nor too little memory during imports
    leaves a traceback or a misleading exit code.
    """
    from moeparity.cli.signals import ignore_signals, listen
    from moeparity.cli.streams import fill_closed, forget_odd_sizes

    listen()
    fill_closed()
    forget_odd_sizes()
    try:
        import logging

        # With too little memory hashlib would log a traceback for every hash that it could not load, and go on.
        logging.disable()
        from moeparity.cli.commands import main as run

        logging.disable(logging.NOTSET)
    except Exception as error:  # noqa: BLE001  exit code 1 says "divergence"
        sys.exit(_not_loaded(error))
    try:
        run()
    finally:
        ignore_signals()


def _not_loaded(error: Exception) -> int:
    """Say why the commands could not be imported, using what is loaded so far, and return the exit code: 2, no answer;
    under `git bisect` that of a commit that can't be tested.

    With too little memory Python may raise anything.
    """
    reason = ascii(f"{type(error).__name__}: {error}")[1:-1]
    line = f"error: moeparity could not be loaded: {reason}. Is there memory for it, and is it installed whole?\n"
    with suppress(OSError):
        os.write(2, line.encode())
    return 125 if "--git-bisect" in sys.argv else 2
