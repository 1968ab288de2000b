"""Starts the ranks of a job as processes of their own, and says how they ended and whether any is left."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

JOB = Path(__file__).with_name("job.py")
QUICK = {"heartbeat_s": 0.1, "watchdog_s": 1.5}


@dataclass(frozen=True, slots=True)
class Ended:
    """How a job ended: by rank, exit code, output, standard error; seconds; processes that were left."""

    codes: tuple[int | None, ...]
    outputs: tuple[str, ...]
    errors: tuple[str, ...]
    seconds: float
    left: tuple[int, ...]

    @property
    def verdict(self) -> str:
        """What the watchdog said on standard error."""
        lines = (line for error in self.errors for line in error.splitlines())
        return "\n".join(line for line in lines if line.startswith("moeparity ranks: "))

    def said(self, fault: str) -> set[str]:
        """What the ranks said of a fault."""
        lines = (line for output in self.outputs for line in output.splitlines())
        return {line.removeprefix(f"{fault}: ") for line in lines if line.startswith(f"{fault}: ")}


def launched(
    *arguments: str, ranks: int = 2, settings: Mapping[str, Any] | None = None, limit: float = 60, program: Path = JOB
) -> Ended:
    """Run a job of so many ranks on this host; whoever is there after `limit` seconds is killed and named."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    given = json.dumps({**QUICK, **(settings or {})})
    command = [sys.executable, str(program), "--settings", given, *arguments]
    shared = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
    shared |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(JOB.parents[2])}
    begun = time.monotonic()
    processes = [
        subprocess.Popen(
            command, env={**shared, "RANK": str(rank)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for rank in range(ranks)
    ]
    left = []
    ended = []
    for process in processes:
        try:
            ended.append(process.communicate(timeout=max(0.1, limit - (time.monotonic() - begun))))
        except subprocess.TimeoutExpired:
            left.append(process.pid)
            process.send_signal(signal.SIGKILL)
            ended.append(process.communicate())
    return Ended(
        tuple(process.returncode for process in processes),
        tuple(output for output, _ in ended),
        tuple(error for _, error in ended),
        time.monotonic() - begun,
        tuple(left),
    )
