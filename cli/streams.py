"""Standard output and standard error, which may be closed, full, or without a reader.

Whatever happens to them, the exit code stays right for scripts. A reader that has gone (`| head -1`) is no error: the
rest of the output is dropped silently. Other failures to write are reported.
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
"""The largest width and height of a terminal that is believed."""


class Stream:
    """A text stream that never fails: after its first error everything is dropped, and `error` keeps that error."""

    def __init__(self, inner: TextIO) -> None:
        self._inner = inner
        self.error: OSError | None = None

    def write(self, text: str) -> int:
        """Write the text, or drop it after an error; returns its length, as `TextIO.write` does."""
        self._try(lambda: self._inner.write(text))
        return len(text)

    def flush(self) -> None:
        """Flush, or keep the error."""
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
            # Otherwise buffered text would be tried again when the process ends, and change its exit code.
            with suppress(OSError, ValueError):
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, self._inner.fileno())
                os.close(null)


def forget_odd_sizes() -> None:
    """Remove environment variables for a terminal's width and height that are not numbers from 1 to 10,000, for which
    rich and typer fail.
    """
    for name in ("COLUMNS", "LINES"):
        size = whole_number(os.environ.get(name, ""))
        if size is None or not 1 <= size <= _LARGEST:
            os.environ.pop(name, None)


def fill_closed() -> None:
    """Open descriptors 0, 1 and 2 if they are closed, since libraries write to them, and another file must not take
    their place.
    """
    for number, flags in ((0, os.O_RDONLY), (1, os.O_WRONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, flags)


@contextmanager
def guarded() -> Iterator[Stream]:
    """A context in which both streams never fail, in any locale; gives standard output."""
    before = sys.stdout, sys.stderr
    streams = [Stream(stream or open(os.devnull, "w", encoding="utf-8")) for stream in before]  # noqa: PTH123, SIM115
    for stream in streams:
        if hasattr(stream, "reconfigure"):
            # Characters that the locale lacks are written by their numbers.
            stream.reconfigure(errors="backslashreplace")
    sys.stdout, sys.stderr = (cast("TextIO", stream) for stream in streams)
    try:
        yield streams[0]
    finally:
        for stream in streams:
            stream.flush()
        sys.stdout, sys.stderr = before


def lost(stream: Stream) -> str | None:
    """Why what was printed has not arrived; None if it has, or if its reader has gone."""
    stream.flush()
    if stream.error is None or stream.error.errno == errno.EPIPE:
        return None
    return stream.error.strerror or str(stream.error)
