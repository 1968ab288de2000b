"""Starts the ranks of a job as processes of their own, and says how they ended and whether any is left."""

from __future__ import annotations

import json
import os
import signal
import socket
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, Any

from tests.command import Forked, warm

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


class Begun:
    """A job that runs: several may, and each is asked in the end how it went."""

    def __init__(self, ranks: list[Forked], outputs: list[IO[str]], errors: list[IO[str]], begun: float) -> None:
        self._ranks = ranks
        self._outputs, self._errors, self.start = outputs, errors, begun

    def ended(self, limit: float = 60) -> Ended:
        """How it ended; whoever is there `limit` seconds after its begin is killed and named."""
        ends, leftovers = [], []
        for rank in self._ranks:
            end = rank.ended(self.start + limit)
            if end is None:
                leftovers.append(rank.process)
                os.kill(rank.process, signal.SIGKILL)
                end = rank.ended()
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
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
    warm()
    start = time.monotonic()
    outputs, errors = ([_scratch() for _ in range(ranks)] for _ in range(2))
    processes = [
        Forked(
            module,
            *arguments,
            variables={**shared, "RANK": str(rank), **((variables or {}).get(rank, {}))},
            output=outputs[rank],
            errors=errors[rank],
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
