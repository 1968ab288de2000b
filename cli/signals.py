"""Handles Ctrl-C and SIGTERM: one line on standard error, no files left behind, exit codes 130 and 143."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

from moeparity.progress import Stop, tidy_up

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def listen() -> None:
    """From now on a signal ends this process, with one line and exit code 128 + its number.

    The process ends at once, without an exception: native code that calls back into Python swallows one (`import
    torch`), turns it into one of its own (safetensors) or aborts (pybind11).
    """
    for number in _SIGNALS:
        # A signal that is ignored stays so, as nohup and a script's background jobs ask for.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _leave)


def ignore_signals() -> None:
    """Ignore signals from now on: the result has been printed, and all that is left is to end quickly.

    Does nothing if this process has not called `listen`, since it belongs to another program then.
    """
    for number in _SIGNALS:
        if signal.getsignal(number) is _leave:
            signal.signal(number, signal.SIG_IGN)


@contextmanager
def stopping(stop: Stop) -> Iterator[None]:
    """A context in which the first Ctrl-C asks a long step to end with what it knows; a second one ends the process.

    Does nothing if this process has not called `listen`.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is not _leave:
        yield
        return

    def ask(number: int, frame: FrameType | None) -> None:
        stop.is_asked = True
        signal.signal(number, _leave)
        with suppress(OSError):
            os.write(2, b"stopping: what is known is printed; Ctrl-C again ends it at once\n")

    signal.signal(signal.SIGINT, ask)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    # A second signal ends the process at once, however long cleaning up takes.
    for handled in _SIGNALS:
        signal.signal(handled, signal.SIG_DFL)
    note = " ".join(tidy_up()) or "No finished pass was kept; start it again."
    line = f"interrupted: {signal.Signals(number).name}; no file is half-written. {note}\n"
    # Python's own streams can't be used if the signal came in the middle of a write to them.
    with suppress(OSError, RuntimeError):  # a reader that has gone away
        sys.stdout.flush()
    with suppress(OSError):
        os.write(2, line.encode())
    # sys.exit would raise an exception, and wait for the thread that reads the next layer.
    os._exit(128 + number)
