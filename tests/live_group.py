"""Processes of a live gloo group, started by a module of the tests; none of them outlives the call."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress

from tests.command import ROOT


def run_group(module: str, *arguments: str, variables: Mapping[str, str] | None = None) -> None:
    """Run a module that starts a group of its own, and end whatever it leaves."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **(variables or {})}
    command = [sys.executable, "-m", "tests.uncollected", module, *arguments]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as started:
        try:
            _, output = started.communicate(timeout=240)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)
    assert started.returncode == 0, output
