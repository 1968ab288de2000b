"""Ctrl-C and SIGTERM: one line on standard error, nothing left behind, exit codes 130 and 143."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from types import FrameType
from typing import NoReturn

from moeparity.progress import tidy_up

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def listen() -> None:
    """Let a signal end this process from now on, in one line and with 128 + its number.

    It ends where it stands, and raises nothing: native code that calls back into Python swallows an exception
    (`import torch`), turns it into one of its own (safetensors) or aborts (pybind11).
    """
    for number in _SIGNALS:
        # A signal that is ignored stays so: nohup, and jobs that a script starts in the background, ask for that.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _leave)


def ignore_signals() -> None:
    """Ignore signals from now on: the result is out, and ending the process quickly is all that is left to do.

    Nothing in a process that does not `listen`: it is another's.
    """
    for number in _SIGNALS:
        if signal.getsignal(number) is _leave:
            signal.signal(number, signal.SIG_IGN)


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    # A second signal ends the process at once, however long it takes to tidy up.
    for handled in _SIGNALS:
        signal.signal(handled, signal.SIG_DFL)
    note = " ".join(tidy_up()) or "No finished pass was kept; start it again."
    line = f"interrupted: {signal.Signals(number).name}; no file is half-written. {note}\n"
    # Python's own streams refuse to be used where the signal came in the midst of a write to them.
    with suppress(OSError, RuntimeError):  # a reader that has gone away
        sys.stdout.flush()
    with suppress(OSError):
        os.write(2, line.encode())
    # Not sys.exit: it would raise, and wait for the thread that reads the next layer.
    os._exit(128 + number)
