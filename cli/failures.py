"""What is printed if a command can't give an answer: a user's mistake, too little memory, a mistake of moeparity's.

Exit code 1 means "divergence", so no failure may end with it.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from moeparity.output.words import printable, shortened

CRASH = 70
"""The exit code for a mistake of moeparity's own (EX_SOFTWARE of sysexits.h)."""
SKIP = 125
"""The exit code that `git bisect run` takes as "this commit can't be tested"."""
_NO_MEMORY = ("not enough memory", "can't allocate memory", "Cannot allocate memory", "out of memory", "map segment")
_LONGEST = 300

debug = False
"""Whether a crash prints its trace; the option --debug sets it."""


def report_error(message: str) -> None:
    """Print one message on standard error."""
    print(f"error: {shortened(printable(message))}", file=sys.stderr)


class _Warnings(logging.Handler):
    """Prints warnings of the log "moeparity" on the current standard error, a line each."""

    def emit(self, record: logging.LogRecord) -> None:
        print(f"warning: {shortened(printable(record.getMessage()))}", file=sys.stderr)


@contextmanager
def told_warnings() -> Iterator[None]:
    """A context in which warnings that the library only logs are printed."""
    log, handler = logging.getLogger("moeparity"), _Warnings(logging.WARNING)
    before, log.propagate = log.propagate, False
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.propagate = before


def crashed(error: BaseException) -> int:
    """Report an unforeseen exception in one line, and return the exit code: 2 for too little memory, else 70."""
    if debug:
        traceback.print_exception(error)
    message, code = in_words(error)
    report_error(message)
    return code


def in_words(error: BaseException) -> tuple[str, int]:
    """The line and the exit code for an unforeseen exception."""
    text = next(iter(str(error).splitlines()), "")[:_LONGEST]
    if isinstance(error, MemoryError) or any(words in text for words in _NO_MEMORY):
        return "the system gave no more memory. Free some, or compare fewer or shorter sequences.", 2
    frame = traceback.extract_tb(error.__traceback__)[-1]
    message = (
        f"moeparity failed, which is a mistake of its own: {type(error).__name__}: {text} "
        f"({frame.filename}:{frame.lineno}). That says nothing about the comparison. `moeparity --debug ...` prints "
        "the full trace; please report it."
    )
    return message, CRASH
