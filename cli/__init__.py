"""The command line. Installed as `moeparity.cli`; thin, and torch-free until a command computes."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

if __name__ != "moeparity.cli":
    raise ImportError("import this package as moeparity.cli; `cli` is only where its source lies")

__all__ = ["main"]


def main() -> None:
    """The console script. The commands are imported inside, so that neither a signal nor too little memory during
    imports leaves a traceback, or an exit code that says something else.
    """
    from moeparity.cli.signals import ignore_signals, listen
    from moeparity.cli.streams import fill_closed, forget_odd_sizes

    listen()
    fill_closed()
    forget_odd_sizes()
    try:
        import logging

        # With too little memory hashlib logs a traceback for every hash that it could not load, and goes on.
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
    """Tell why the commands could not be imported, with what is loaded by then, and return the exit code for it: 2, no
    answer; for `git bisect` that of a commit which cannot be tested.

    With too little memory Python raises whatever it can.
    """
    reason = ascii(f"{type(error).__name__}: {error}")[1:-1]
    line = f"error: moeparity could not be loaded: {reason}. Is there memory for it, and is it installed whole?\n"
    with suppress(OSError):
        os.write(2, line.encode())
    return 125 if "--git-bisect" in sys.argv else 2
