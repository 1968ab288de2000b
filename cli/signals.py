"""Ctrl-C and SIGTERM: one line on standard error, nothing left behind, exit codes 130 and 143."""

from __future__ import annotations

import atexit
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# What was raised, should native code that called back into Python report an error of its own in its stead:
# safetensors turns whatever is raised inside its callback into a ValueError.
_raised: list[Interrupted] = []
# Those that `interruptible` handles at the moment.
_heard: list[signal.Signals] = []


class Interrupted(BaseException):
    """A signal asked the run to stop. No KeyboardInterrupt, which click would turn into `Aborted!` and exit code 1."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


@contextmanager
def interruptible() -> Iterator[None]:
    """Let a signal unwind what runs inside, say so in one line, and leave with 128 + its number."""
    # A signal that is ignored stays so: nohup, and jobs that a script starts in the background, ask for that.
    _heard[:] = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, _interrupt) for number in _heard}
    # Once the result is out, ending the process quickly is all that is left to do.
    atexit.register(_all, signal.SIG_IGN)
    try:
        yield
    except BaseException as error:
        if not _raised:
            raise
        _leave(_raised[0], error)
    finally:
        # None are left where the run has `finished`: they stay ignored until the process has ended.
        for number in _heard:
            signal.signal(number, before[number])
        _heard.clear()


def finished() -> None:
    """Ignore signals until the process ends: the file has its name, and what is left is to say so.

    Nothing outside of `interruptible`, where the process is another's.
    """
    for number in _heard:
        signal.signal(number, signal.SIG_IGN)
    _heard.clear()


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    # A second signal ends the process at once, however long it takes to unwind.
    _all(signal.SIG_DFL)
    _raised.append(Interrupted(number))
    raise _raised[0]


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error and those it was raised while handling, newest first."""
    while error is not None:
        yield error
        error = error.__context__


def _all(handler: signal.Handlers) -> None:
    for number in _SIGNALS:
        signal.signal(number, handler)


def _leave(interrupted: Interrupted, error: BaseException) -> NoReturn:
    from moeparity.report.files import discard_unfinished

    discard_unfinished()
    notes = [note for passed in _chain(error) for note in getattr(passed, "__notes__", [])]
    kept = " ".join(notes) or "No finished pass was kept; start it again."
    with suppress(OSError):  # a reader that has gone away
        print(f"interrupted: {interrupted}; no file is half-written. {kept}", file=sys.stderr, flush=True)
        sys.stdout.flush()
    # Not sys.exit: the interpreter would first wait for the thread that reads the next layer.
    os._exit(interrupted.exit_code)
