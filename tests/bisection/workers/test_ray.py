"""A ray cluster on this machine: the bytes of a local run, with a worker killed in the middle."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest

from moeparity.bisection.pipeline import bisect
from tests.bisection.workers.test_sharded_pass import stable, write_recipe

pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="ray is not there: pip install 'moeparity[ray]'")

PROGRAM = """
import os, signal, sys, threading, warnings
warnings.simplefilter("ignore")
from moeparity.bisection.pipeline import bisect
from moeparity.bisection.workers import cluster

ask, once = cluster._RayWorker.ask, threading.Lock()

def kills(self, message, told):
    if once.acquire(blocking=False):
        os.kill(self.ray.get(self.actor.number.remote()), signal.SIGKILL)
    return ask(self, message, told)

cluster._RayWorker.ask = kills
report = bisect(sys.argv[1], device="cpu", workers="ray")
open(sys.argv[2], "w").write(report.to_json())
"""


def test_the_report_has_the_bytes_of_a_local_one_though_a_worker_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a process of its own: ray starts threads, handlers and processes that no test should inherit."""
    monkeypatch.chdir(tmp_path)
    recipe = write_recipe(tmp_path, "ray", "floor: false\n")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", PROGRAM, recipe.name, "ray.json"]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "its worker was lost" in ran.stderr
    local = bisect(recipe.name, device="cpu")
    shared = Path("ray.json").read_text("utf-8")
    assert stable(shared) == stable(local.to_json())
    assert json.loads(shared)["digest"] == json.loads(local.to_json())["digest"]


def test_a_killed_command_leaves_no_process(tmp_path: Path) -> None:
    """Nor does ray, once its workers have begun."""
    recipe = write_recipe(tmp_path, "ray", "floor: false\n")
    mark = f"MOEPARITY_TEST={uuid.uuid4()}"
    command = [sys.executable, "-m", "moeparity.cli", "bisect", str(recipe), "--device", "cpu", "--workers", "ray"]
    name, _, value = mark.partition("=")
    nowhere = subprocess.DEVNULL
    process = subprocess.Popen(command, env={**os.environ, name: value}, stderr=nowhere, stdout=nowhere)
    while not any("ray::" in words for words in running(mark)) and process.poll() is None:
        time.sleep(0.1)
    assert process.poll() is None
    process.kill()
    process.wait()
    deadline = time.monotonic() + 60
    while running(mark) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert running(mark) == []


def running(mark: str) -> list[str]:
    """The command lines of processes with that in their environment."""
    commands = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark.encode() in (folder / "environ").read_bytes():
                commands.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return commands
