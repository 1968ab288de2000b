"""The command line, as a user runs it and in this process, which has imported torch already."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

from moeparity.cli import main

ROOT = Path(__file__).parents[1]

Done = subprocess.CompletedProcess[str]


def alone(*arguments: str | Path, cwd: Path = ROOT) -> Done:
    """`moeparity ARGUMENTS` in a process of its own: what only a process shows, once for each command."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "moeparity.cli", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, env=environment)


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
    given = ["moeparity", *map(str, arguments)]
    out, error, code = io.StringIO(), io.StringIO(), 0
    argv = patch.object(sys, "argv", given)
    streams = contextlib.redirect_stdout(out), contextlib.redirect_stderr(error)
    with contextlib.chdir(cwd), argv, streams[0], streams[1], own_signals():
        try:
            main()
        except SystemExit as left:
            assert left.code is None or isinstance(left.code, int)
            code = left.code or 0
    return subprocess.CompletedProcess(given, code, out.getvalue(), error.getvalue())
