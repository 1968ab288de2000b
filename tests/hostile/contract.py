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
"""A command hangs after so many seconds of its own processor time, or of waiting for anything but a processor: how
long others keep it from one is not its own.
"""
MEMORY = 6 * 2**30
"""Bytes of address space that a command may add to those of the warm process."""
CODES = {0, 1, 2, 3, 130, 143}
CRASHED = 99
"""Where the console script did not end by itself."""
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_LONGEST_MESSAGE = 2_000
UNTOLD = "exit code 2 without a message"


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended: its exit code (None: it was stopped after `LONGEST`), and both streams."""

    code: int | None
    output: str
    errors: str


def console() -> None:
    """The console script."""
    from moeparity.cli import main

    main()


def run(arguments: tuple[str, ...], folder: Path, act: Callable[[], object] = console) -> Ended:
    """`moeparity ARGUMENTS` in a folder, in a fork of this process, which has loaded everything already; `act` is what
    finds them in `sys.argv`.
    """
    return start(arguments, folder, act).end()


@dataclass(frozen=True, slots=True)
class Running:
    """A command that runs: its process, and the files without a name that it prints to."""

    child: int
    streams: tuple[IO[bytes], IO[bytes]]

    def end(self) -> Ended:
        """Wait for it, at most `LONGEST`."""
        code = _wait(self.child)
        texts = printed(self.streams)
        for stream in self.streams:
            stream.close()
        return Ended(code, *texts)


def printed(streams: tuple[IO[bytes], IO[bytes]]) -> tuple[str, str]:
    """What lies in the files of both streams; they are empty afterwards."""
    texts = []
    for number in (stream.fileno() for stream in streams):
        texts.append(os.pread(number, os.fstat(number).st_size, 0).decode("utf-8", errors="replace"))
        os.ftruncate(number, 0)
        os.lseek(number, 0, os.SEEK_SET)
    return texts[0], texts[1]


def start(arguments: tuple[str, ...], folder: Path, act: Callable[[], object] = console) -> Running:
    """As `run`, without waiting for its end."""
    streams = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        _become(arguments, folder, streams, act)
    return Running(child, streams)


def _become(
    arguments: tuple[str, ...],
    folder: Path,
    streams: tuple[IO[bytes], IO[bytes]],
    act: Callable[[], object],
) -> None:
    """The forked child: the console script with streams of its own. Never returns."""
    code = CRASHED
    try:
        take_over(streams)
        code = call(arguments, folder, act)
    finally:
        os._exit(code)


def take_over(streams: tuple[IO[bytes], IO[bytes]]) -> None:
    """Let files be this process's standard output and standard error."""
    for number, stream in zip((1, 2), streams, strict=True):
        os.dup2(stream.fileno(), number)


def call(arguments: tuple[str, ...], folder: Path, act: Callable[[], object]) -> int:
    """What `act` does in this process as in a new one, and the code that it would end with."""
    os.chdir(folder)
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    limit_memory(MEMORY)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    sys.argv = ["moeparity", *arguments]
    code = CRASHED
    try:
        act()
        code = 0
    except SystemExit as exit_error:
        code = exit_error.code if isinstance(exit_error.code, int) else int(exit_error.code is not None)
    except BaseException:  # noqa: BLE001  nothing that the console script raises may get out of it
        traceback.print_exc()
    # What Python does at the end of a process.
    for stream in filter(None, (sys.stdout, sys.stderr)):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    return code


def limit_memory(more: int) -> None:
    """Let this process have so many bytes of address space more than it has."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + more
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))


def _wait(child: int) -> int | None:
    patience = Patience(child)
    while patience.lasts():
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


class Patience:
    """How long a process may still go on: until `LONGEST` of a processor, or `STUCK` of waiting, have passed."""

    def __init__(self, child: int) -> None:
        self._child = child
        self._looked = time.monotonic()
        self._waited = 0.0
        self._had = self._processor_seconds()

    def lasts(self) -> bool:
        """Whether it may; asked often, since between two looks a process counts as it is at the second."""
        before, self._looked = self._looked, time.monotonic()
        if not self._ready():
            self._waited += self._looked - before
        return self._waited < STUCK and self._processor_seconds() - self._had < LONGEST

    def _ready(self) -> bool:
        """Whether a thread of it runs, or would if it were its turn."""
        for thread in Path(f"/proc/{self._child}/task").glob("*/stat"):
            with contextlib.suppress(OSError):
                if _fields(thread)[0] == "R":
                    return True
        return False

    def _processor_seconds(self) -> float:
        user, system = _fields(Path(f"/proc/{self._child}/stat"))[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def _fields(file: Path) -> list[str]:
    """What Linux tells of a process or a thread, from its state on."""
    return file.read_text().rpartition(")")[2].split()


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
