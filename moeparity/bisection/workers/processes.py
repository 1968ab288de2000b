"""Workers that are processes on this machine (`--workers N`)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress

from moeparity.bisection.workers.crew import Crew, LostWorkerError, Worker
from moeparity.bisection.workers.message import PART
from moeparity.bisection.workers.worker_process import WORK, read, write
from moeparity.errors import MoeparityError


class Process:
    """One worker: a process that reads tasks from its standard input and ends when that does."""

    def __init__(self) -> None:
        command = [sys.executable, "-P", "-m", WORK]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)}
        try:
            # In a session of its own, so that Ctrl-C reaches only the command, which then ends the worker.
            self._process = subprocess.Popen(  # noqa: S603  this very Python
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, env=environment
            )
        except OSError as error:
            raise MoeparityError(f"--workers: no process could be started: {error.strerror}. Give fewer.") from None

    @property
    def number(self) -> int:
        """The process's id."""
        return self._process.pid

    def ask(self, message: bytes, on_part: Callable[[float], None]) -> bytes:
        """The answer to a task. Raises LostWorkerError."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            write(self._process.stdin, message)
            while (answer := read(self._process.stdout)) is not None:
                if answer[:1] != PART:
                    return answer
                on_part(float(answer[1:]))
        except (OSError, ValueError):
            pass
        code = self._process.wait()
        self.end()
        raise LostWorkerError(f"ended by signal {-code}" if code < 0 else f"ended with exit code {code}")

    def end(self) -> None:
        """End the worker, whatever it is doing; a caller that waits for it gets LostWorkerError."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            # Output that is still buffered can't be written any more.
            with suppress(OSError):
                if pipe is not None:
                    pipe.close()


class LocalCrew(Crew):
    """A crew of processes on this machine."""

    def begin(self) -> Worker:
        """A further process."""
        return Process()
