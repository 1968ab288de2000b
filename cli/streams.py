"""Standard output and standard error, either of which may be closed, full, or read by nobody any more.

Whatever becomes of them, the exit code stays what a script takes it for. A reader that has gone away (`| head -1`) is
no mistake: what is left to print is dropped in silence. Output that could not be written for another reason is told.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast

from moeparity.errors import whole_number

_LARGEST = 10_000
"""Columns and lines of a terminal."""


class Stream:
    """A text stream that never fails: after its first error everything is dropped, and `error` says which it was."""

    def __init__(self, inner: TextIO) -> None:
        self._inner = inner
        self.error: OSError | None = None

    def write(self, text: str) -> int:
        """Write, or drop what nobody takes; characters returned as `TextIO.write` does."""
        self._try(lambda: self._inner.write(text))
        return len(text)

    def flush(self) -> None:
        """Flush, or note why that is not possible."""
        self._try(self._inner.flush)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def _try(self, act: Callable[[], object]) -> None:
        if self.error is not None:
            return
        try:
            act()
        except OSError as error:
            self.error = error
            # What is buffered would be tried again when the process ends, and change its exit code.
            with suppress(OSError, ValueError):
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, self._inner.fileno())
                os.close(null)


def forget_odd_sizes() -> None:
    """Take variables from the environment that say how wide and high a terminal is and are no number from 1 to 10,000:
    rich and typer fail for them.
    """
    for name in ("COLUMNS", "LINES"):
        size = whole_number(os.environ.get(name, ""))
        if size is None or not 1 <= size <= _LARGEST:
            os.environ.pop(name, None)


def fill_closed() -> None:
    """Let nothing else become descriptor 0, 1 or 2: libraries write to these numbers, whatever file they are."""
    for number, flags in ((0, os.O_RDONLY), (1, os.O_WRONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, flags)


@contextmanager
def guarded() -> Iterator[Stream]:
    """While the context lasts, both streams never fail, whatever the locale; gives standard output."""
    before = sys.stdout, sys.stderr
    streams = [Stream(stream or open(os.devnull, "w", encoding="utf-8")) for stream in before]  # noqa: PTH123, SIM115
    for stream in streams:
        if hasattr(stream, "reconfigure"):
            # A locale that lacks a character shows it by its number.
            stream.reconfigure(errors="backslashreplace")
    sys.stdout, sys.stderr = (cast("TextIO", stream) for stream in streams)
    try:
        yield streams[0]
    finally:
        for stream in streams:
            stream.flush()
        sys.stdout, sys.stderr = before


def lost(stream: Stream) -> str | None:
    """Why what was printed has not arrived; None where it has, or where its reader has had enough."""
    stream.flush()
    if stream.error is None or stream.error.errno == errno.EPIPE:
        return None
    return stream.error.strerror or str(stream.error)
