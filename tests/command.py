"""The command line: as a user runs it, in a fork of a warm process, and in this process. Both have imported torch.

Forks of the warm process run other programs too: ranks of jobs, and programs that fork ranks of their own.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import IO
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
    return [sys.executable, "-I", "-S", str(ROOT / "tests" / "launch.py"), str(warm())]


@cache
def warm() -> Path:
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


class Forked:
    """A fork of the warm process that runs a module's `main`, with its output and its errors in two files.

    `forks`: what it starts is ended with it.
    """

    def __init__(
        self,
        module: str,
        *arguments: str,
        variables: Mapping[str, str],
        output: IO[str],
        errors: IO[str],
        forks: bool = False,
    ) -> None:
        self._asking = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._asking.connect(str(warm()))
        request = {
            "module": module,
            "name": module,
            "arguments": arguments,
            "folder": str(ROOT),
            "variables": {**os.environ, "OMP_NUM_THREADS": "1", **variables},
            "open": [0, 1, 2],
            "forks": forks,
        }
        with Path(os.devnull).open() as nothing:
            streams = [file.fileno() for file in (nothing, output, errors)]
            socket.send_fds(self._asking, [json.dumps(request).encode()], streams)
        self.process = int(self._answer()["forked"])

    def ended(self, until: float | None = None) -> tuple[int, float] | None:
        """Its exit code and when it ended, by the monotonic clock; None where it still runs `until` then."""
        seconds = None if until is None else max(0, until - time.monotonic())
        ready, _, _ = select.select([self._asking], [], [], seconds)
        if not ready:
            return None
        with self._asking:
            answer = self._answer()
        return int(answer["code"]), answer["at"]

    def _answer(self) -> dict[str, float]:
        answer: dict[str, float] = json.loads(self._asking.recv(256))
        return answer


def run_live(module: str, *arguments: str, limit: float = 240) -> None:
    """Run a program that forks ranks of its own, over this host's own network; none of them outlives this."""
    variables = {"GLOO_SOCKET_IFNAME": "lo", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    with tempfile.TemporaryFile("w+", encoding="utf-8") as output:
        program = Forked(module, *arguments, variables=variables, output=output, errors=output, forks=True)
        try:
            end = program.ended(time.monotonic() + limit)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(program.process, signal.SIGKILL)
        output.seek(0)
        assert end is not None, f"{module} has not ended after {limit} s: {output.read()}"
        assert end[0] == 0, output.read()


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
