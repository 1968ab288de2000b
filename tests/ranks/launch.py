"""Starts the ranks of a job as processes of their own, and says how they ended and whether any is left."""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).parents[2]
JOB = "tests.ranks.job"
QUICK = {"heartbeat_s": 0.1, "watchdog_s": 1.5}


@dataclass(frozen=True, slots=True)
class Ended:
    """How a job ended: by rank, exit code, output, standard error, seconds; processes that were left."""

    codes: tuple[int, ...]
    outputs: tuple[str, ...]
    errors: tuple[str, ...]
    times: tuple[float, ...]
    leftovers: tuple[int, ...]

    @property
    def seconds(self) -> float:
        """Until the last rank ended."""
        return max(self.times)

    @property
    def verdict(self) -> str:
        """What the watchdog said on standard error."""
        lines = (line for error in self.errors for line in error.splitlines())
        return "\n".join(line for line in lines if line.startswith("moeparity ranks: "))

    def words(self, fault: str) -> set[str]:
        """What the ranks said of a fault."""
        lines = (line for output in self.outputs for line in output.splitlines())
        return {line.removeprefix(f"{fault}: ") for line in lines if line.startswith(f"{fault}: ")}


class Warm:
    """The process that forks ranks (`warm.py`), which ends with this one."""

    def __init__(self) -> None:
        self._asking, requests = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with requests:
            command = [sys.executable, "-m", "tests.ranks.warm"]
            self._process = subprocess.Popen(command, cwd=ROOT, env=environment, stdin=requests.fileno())
        self._ended: dict[int, tuple[int, float]] = {}
        atexit.register(self.close)
        assert self._asking.recv(64) == b"warm"

    def fork(self, module: str, arguments: tuple[str, ...], variables: Mapping[str, str], streams: list[int]) -> int:
        """The process id of a rank that has begun."""
        request = {"module": module, "arguments": arguments, "variables": dict(variables)}
        socket.send_fds(self._asking, [json.dumps(request).encode()], streams)
        while (process := self._hear()) is None:
            pass
        return process

    def ended(self, process: int, until: float | None = None) -> tuple[int, float] | None:
        """The exit code of a rank and when it ended, by the monotonic clock; None where it still runs `until` then."""
        while process not in self._ended:
            seconds = None if until is None else max(0, until - time.monotonic())
            ready, _, _ = select.select([self._asking], [], [], seconds)
            if not ready:
                return None
            self._hear()
        return self._ended.pop(process)

    def close(self) -> None:
        """End it, and the ranks that are left."""
        self._asking.close()
        self._process.wait()

    def _hear(self) -> int | None:
        reply = json.loads(self._asking.recv(1 << 16))
        if "forked" in reply:
            return int(reply["forked"])
        self._ended[reply["pid"]] = (reply["code"], reply["at"])
        return None


@cache
def warm() -> Warm:
    """The one of this process."""
    return Warm()


class Begun:
    """A job that runs: several may, and each is asked in the end how it went."""

    def __init__(self, processes: list[int], outputs: list[IO[str]], errors: list[IO[str]], begun: float) -> None:
        self.processes = processes
        self._outputs, self._errors, self.start = outputs, errors, begun

    def ended(self, limit: float = 60) -> Ended:
        """How it ended; whoever is there `limit` seconds after its begin is killed and named."""
        ends, leftovers = [], []
        for process in self.processes:
            end = warm().ended(process, self.start + limit)
            if end is None:
                leftovers.append(process)
                os.kill(process, signal.SIGKILL)
                end = warm().ended(process)
                assert end is not None
            ends.append(end)
        return Ended(
            codes=tuple(code for code, _ in ends),
            outputs=_texts(self._outputs),
            errors=_texts(self._errors),
            times=tuple(at - self.start for _, at in ends),
            leftovers=tuple(leftovers),
        )


def begun(
    *arguments: str, ranks: int, module: str = JOB, variables: Mapping[int, Mapping[str, str]] | None = None
) -> Begun:
    """Begin a job of so many ranks on this host; `variables` are of single ranks."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
    shared |= {"OMP_NUM_THREADS": "1"}
    forks, start = warm(), time.monotonic()
    outputs, errors = ([_scratch() for _ in range(ranks)] for _ in range(2))
    processes = [
        forks.fork(
            module,
            arguments,
            {**shared, "RANK": str(rank), **((variables or {}).get(rank, {}))},
            [outputs[rank].fileno(), errors[rank].fileno()],
        )
        for rank in range(ranks)
    ]
    return Begun(processes, outputs, errors, start)


def launched(*arguments: str, ranks: int = 2, settings: Mapping[str, Any] | None = None, limit: float = 60) -> Ended:
    """Run the scripted job (`job.py`) to its end."""
    return begun_job(*arguments, ranks=ranks, settings=settings).ended(limit)


def begun_job(*arguments: str, ranks: int = 2, settings: Mapping[str, Any] | None = None) -> Begun:
    """Begin the scripted job with quick guards."""
    return begun("--settings", json.dumps({**QUICK, **(settings or {})}), *arguments, ranks=ranks)


def _scratch() -> IO[str]:
    """A file that a rank writes to, and that is gone when it is closed."""
    return tempfile.TemporaryFile("w+", encoding="utf-8")


def _texts(files: list[IO[str]]) -> tuple[str, ...]:
    texts = []
    for file in files:
        with file:
            file.seek(0)
            texts.append(file.read())
    return tuple(texts)
