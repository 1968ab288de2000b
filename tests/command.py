"""The command line: as a user runs it, in a fork of a warm process, and in this process. Both have imported torch."""

from __future__ import annotations

import atexit
import contextlib
import io
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from unittest.mock import patch

from moeparity.cli import main

ROOT = Path(__file__).parents[1]

Done = subprocess.CompletedProcess[str]


def executable(*arguments: str | Path, cwd: Path = ROOT) -> Done:
    """`moeparity ARGUMENTS` as a user starts it: for what only the start of Python, or what it imports, shows."""
    return _run([sys.executable, "-m", "moeparity.cli"], arguments, cwd)


def alone(*arguments: str | Path, cwd: Path = ROOT) -> Done:
    """`moeparity ARGUMENTS` in a process of its own, which need not import torch: what only a process shows, once for
    each command.
    """
    return _run(launcher(), arguments, cwd)


def _run(command: list[str], arguments: tuple[str | Path, ...], cwd: Path) -> Done:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*command, *map(str, arguments)], cwd=cwd, capture_output=True, text=True, check=False, env=environment
    )


def launcher() -> list[str]:
    """The words that stand for `moeparity` in a shell, and fork a process that is warm: tests/warm.py."""
    return [sys.executable, "-I", "-S", str(ROOT / "tests" / "launch.py"), str(_warm())]


@cache
def _warm() -> Path:
    """The socket of a process that ends with this one."""
    folder = tempfile.TemporaryDirectory()
    place = Path(folder.name) / "socket"
    command = [sys.executable, "-m", "tests.warm", str(place)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdin=pipe, stdout=pipe, text=True)

    def end() -> None:
        process.communicate()
        folder.cleanup()

    atexit.register(end)
    assert process.stdout.readline() == "listening\n"
    return place


@contextlib.contextmanager
def own_signals() -> Iterator[None]:
    """The console script owns its process and leaves signals ignored there, also for the processes it starts; a test
    that calls it does not.
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def inside(*arguments: str | Path, cwd: Path = ROOT) -> Done:
    """The same through the console script's own function: seconds less, and whatever it raises is the test's."""
    words = ["moeparity", *map(str, arguments)]
    out, error, code = io.StringIO(), io.StringIO(), 0
    argv = patch.object(sys, "argv", words)
    streams = contextlib.redirect_stdout(out), contextlib.redirect_stderr(error)
    with contextlib.chdir(cwd), argv, streams[0], streams[1], own_signals():
        try:
            main()
        except SystemExit as exit_error:
            assert exit_error.code is None or isinstance(exit_error.code, int)
            code = exit_error.code or 0
    return subprocess.CompletedProcess(words, code, out.getvalue(), error.getvalue())
