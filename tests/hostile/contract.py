"""What holds of every command, whatever it is given; and one command, run in a fork of a warm process."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

LONGEST = 20.0
"""Seconds after which a command hangs."""
MEMORY = 6 * 2**30
"""Bytes of address space that a command may add to those of the warm process."""
CODES = {0, 1, 2, 3, 130, 143}
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_LONGEST_MESSAGE = 2_000


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended: its exit code (None: it was stopped after `LONGEST`), and both streams."""

    code: int | None
    output: str
    errors: str


def run(arguments: tuple[str, ...], folder: Path) -> Ended:
    """`moeparity ARGUMENTS` in a folder, in a fork of this process, which has loaded everything already."""
    names = folder / ".out", folder / ".err"
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        _become(arguments, folder, names)
    code = _wait(child)
    output, errors = (name.read_text("utf-8", errors="replace") for name in names)
    for name in names:
        name.unlink()
    return Ended(code, output, errors)


def _become(arguments: tuple[str, ...], folder: Path, names: tuple[Path, Path]) -> None:
    """The forked child: the console script with streams of its own. Never returns."""
    code = 99
    try:
        os.chdir(folder)
        for number, name in zip((1, 2), names, strict=True):
            file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(file, number)
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        sys.argv = ["moeparity", *arguments]
        from moeparity.cli import main

        try:
            main()
            code = 0
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else int(left.code is not None)
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
    finally:
        os._exit(code)


def _wait(child: int) -> int | None:
    end = time.monotonic() + LONGEST
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def breach(ended: Ended) -> str | None:
    """What of the contract does not hold; None where all does."""
    if ended.code is None:
        return f"hangs: more than {LONGEST:.0f} s"
    if ended.code not in CODES:
        return f"exit code {ended.code}"
    text = ended.output + ended.errors
    if "Traceback (most recent call last)" in text:
        return "a traceback"
    if control := _CONTROL.search(text):
        return f"the control character {control[0]!r}"
    if ended.code == 2 and not ended.errors.strip():
        return "exit code 2 without a message"
    longest = max(map(len, ended.errors.splitlines()), default=0)
    if longest > _LONGEST_MESSAGE:
        return f"a message of {longest} characters"
    return None
