"""What holds of every command, whatever it is given; and one command, run in a fork of a warm process."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

LONGEST, STUCK = 20.0, 120.0
"""A command hangs after so many seconds of its own processor time, or of the clock, whatever else the machine does."""
MEMORY = 6 * 2**30
"""Bytes of address space that a command may add to those of the warm process."""
CODES = {0, 1, 2, 3, 130, 143}
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_LONGEST_MESSAGE = 2_000
UNTOLD = "exit code 2 without a message"


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended: its exit code (None: it was stopped after `LONGEST`), and both streams."""

    code: int | None
    output: str
    errors: str


def run(arguments: tuple[str, ...], folder: Path, inside: Callable[[], object] | None = None) -> Ended:
    """`moeparity ARGUMENTS` in a folder, in a fork of this process, which has loaded everything already.

    `inside` is called in the fork before the command, once its streams are files.
    """
    return start(arguments, folder, inside).end()


@dataclass(frozen=True, slots=True)
class Running:
    """A command that runs: its process, and the files without a name that it prints to."""

    child: int
    streams: tuple[IO[bytes], IO[bytes]]

    def end(self) -> Ended:
        """Wait for it, at most `LONGEST`."""
        code = _wait(self.child)
        texts = []
        for stream in self.streams:
            stream.seek(0)
            texts.append(stream.read().decode("utf-8", errors="replace"))
            stream.close()
        return Ended(code, *texts)


def start(arguments: tuple[str, ...], folder: Path, inside: Callable[[], object] | None = None) -> Running:
    """As `run`, without waiting for its end."""
    streams = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        _become(arguments, folder, streams, inside)
    return Running(child, streams)


def _become(
    arguments: tuple[str, ...],
    folder: Path,
    streams: tuple[IO[bytes], IO[bytes]],
    inside: Callable[[], object] | None,
) -> None:
    """The forked child: the console script with streams of its own. Never returns."""
    code = 99
    try:
        os.chdir(folder)
        for number, stream in zip((1, 2), streams, strict=True):
            os.dup2(stream.fileno(), number)
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        limit_memory(MEMORY)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        sys.argv = ["moeparity", *arguments]
        from moeparity.cli import main

        if inside is not None:
            inside()
        try:
            main()
            code = 0
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else int(left.code is not None)
        # What Python does at the end of a process.
        for printed in filter(None, (sys.stdout, sys.stderr)):
            with contextlib.suppress(OSError, ValueError):
                printed.flush()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        raise
    finally:
        os._exit(code)


def limit_memory(more: int) -> None:
    """Let this process have so many bytes of address space more than it has."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + more
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))


def _wait(child: int) -> int | None:
    end = time.monotonic() + STUCK
    while time.monotonic() < end and _processor_seconds(child) < LONGEST:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def _processor_seconds(child: int) -> float:
    fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
    user, system = fields[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


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
        return UNTOLD
    longest = max(map(len, ended.errors.splitlines()), default=0)
    if longest > _LONGEST_MESSAGE:
        return f"a message of {longest} characters"
    return None
