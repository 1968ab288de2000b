"""What is said where a command could not give an answer: a user's mistake, too little memory, a mistake of moeparity's.

Exit code 1 says "divergence" and nothing else may end with it.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from moeparity.output.words import printable, shortened

CRASH = 70
"""The exit code of a mistake of moeparity's own (EX_SOFTWARE of sysexits.h)."""
SKIP = 125
"""What `git bisect run` takes as "this commit cannot be tested"."""
_NO_MEMORY = ("not enough memory", "can't allocate memory", "Cannot allocate memory", "out of memory", "map segment")
_LONGEST = 300

debug = False
"""Whether a crash prints its trace; set by the option --debug of the command line."""


def report_error(message: str) -> None:
    """One message on standard error."""
    print(f"error: {shortened(printable(message))}", file=sys.stderr)


class _Warnings(logging.Handler):
    """Warnings of the log "moeparity" on standard error, whatever it is by then, a line each."""

    def emit(self, record: logging.LogRecord) -> None:
        print(f"warning: {shortened(printable(record.getMessage()))}", file=sys.stderr)


@contextmanager
def told_warnings() -> Iterator[None]:
    """While the context lasts, what the library only logs is printed."""
    log, handler = logging.getLogger("moeparity"), _Warnings(logging.WARNING)
    before, log.propagate = log.propagate, False
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.propagate = before


def crashed(error: BaseException) -> int:
    """Tell what nobody foresaw in one line, and return the exit code for it: 2 for too little memory, else 70."""
    if debug:
        traceback.print_exception(error)
    message, code = in_words(error)
    report_error(message)
    return code


def in_words(error: BaseException) -> tuple[str, int]:
    """The line and the exit code for an exception that nobody foresaw."""
    text = next(iter(str(error).splitlines()), "")[:_LONGEST]
    if isinstance(error, MemoryError) or any(words in text for words in _NO_MEMORY):
        return "the system gave no more memory. Free some, or compare fewer or shorter sequences.", 2
    frame = traceback.extract_tb(error.__traceback__)[-1]
    message = (
        f"moeparity failed, which is a mistake of its own: {type(error).__name__}: {text} "
        f"({frame.filename}:{frame.lineno}). Nothing follows for the comparison. `moeparity --debug ...` prints the "
        "full trace; please report it."
    )
    return message, CRASH
