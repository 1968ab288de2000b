"""Real processes: what they answer is what is computed here, one that is killed is replaced, none is left."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from moeparity.bisection.pipeline import bisect
from moeparity.bisection.workers import request
from moeparity.bisection.workers.crew import LostWorkerError, Worker
from moeparity.bisection.workers.processes import LocalCrew, Process
from tests.bisection.workers.test_sharded_pass import stable, write_recipe
from tests.log_records import Records


def ended(process: int) -> bool:
    """Whether a process is gone, or only its entry is left."""
    try:
        return Path(f"/proc/{process}/stat").read_text("utf-8").rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_a_killed_process_is_replaced_and_the_report_has_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log_records: Records
) -> None:
    recipe = write_recipe(tmp_path, "processes", "floor: false\n")
    crews: list[LocalCrew] = []

    class Watched(LocalCrew):
        """Its first worker is killed as soon as it has begun."""

        def begin(self) -> Worker:
            worker = super().begin()
            assert isinstance(worker, Process)
            crews.append(self)
            if not self.workers:
                os.kill(worker.number, signal.SIGKILL)
            return worker

    monkeypatch.setattr(request, "LocalCrew", Watched)
    monkeypatch.chdir(tmp_path)
    local = bisect(recipe.name, device="cpu")
    shared = bisect(recipe.name, device="cpu", workers=1)
    assert stable(shared.to_json()) == stable(local.to_json())
    assert "of 4: its worker was lost, ended by signal 9; another begins it anew" in log_records.text
    numbers = [worker.number for worker in crews[0].workers if isinstance(worker, Process)]
    assert len(numbers) == 2
    deadline = time.monotonic() + 10
    while not all(map(ended, numbers)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert all(map(ended, numbers))


def test_a_worker_ends_with_the_command_that_began_it() -> None:
    """Its standard input ends, however the command does; here it had not even begun."""
    worker = Process()
    assert worker._process.stdin is not None
    worker._process.stdin.close()
    assert worker._process.wait(30) == 0
    worker.end()


def test_a_worker_that_ends_in_the_midst_is_lost() -> None:
    worker = Process()
    threading.Timer(0.05, worker.end).start()
    with pytest.raises(LostWorkerError, match="ended by signal 9"):
        worker.ask(b"", lambda _: None)
