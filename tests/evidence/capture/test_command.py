"""`moeparity capture -- COMMAND`: ranks, exit codes, signals, processes that are killed, and what is verified."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from moeparity.evidence.trace.reader import RankTrace, open_trace
from tests.command import ROOT, launcher
from tests.evidence.capture import programs

TIME = 120


def _command(*options: str | Path) -> list[str]:
    """The command in a fork of a warm process: that it is forked a program doesn't see."""
    return [*launcher(), "capture", *map(str, options)]


def _environment(**variables: str) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", **variables}


def _run(*options: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        _command(*options),
        capture_output=True,
        text=True,
        check=False,
        timeout=TIME,
        cwd=ROOT,
        env=_environment(**variables),
    )


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(programs.TRAINING)
    return path


def test_a_program_keeps_its_exit_code_and_its_arguments_and_leaves_a_whole_trace(tmp_path: Path, script: Path) -> None:
    done = _run("--out", tmp_path / "t", "--save", "0", "--", sys.executable, script, "--out", "x", CODE="7")
    assert done.returncode == 7
    trace = open_trace(tmp_path / "t").ranks[0]
    assert trace.contents.whole
    assert trace.head.program == (sys.executable, str(script), "--out", "x")
    assert {call.phase for call in trace.contents.calls} == {"forward", "backward", "optimizer"}
    # What it computes behind its third optimizer step is of a fourth.
    assert {call.step for call in trace.contents.calls} == {0, 1, 2, 3}
    # The process that it forks writes nothing.
    assert [call.name for call in trace.contents.calls].count("aten.cos.default") == 1
    assert f"{tmp_path / 't'}/rank-0: " in done.stderr
    assert "cut" not in done.stderr


def _results(rank: RankTrace, name: str) -> list[str | None]:
    """The digests of what collectives of a name gave."""
    calls = [call for call in rank.contents.calls if call.name.startswith(name)]
    return [rank.contents.values[number].digest for call in calls for number in call.outputs.values()]


def _port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def test_two_ranks_are_recorded_and_the_one_that_computes_otherwise_is_found(tmp_path: Path, script: Path) -> None:
    torchrun = ("-m", "tests.uncollected", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", _port())
    recorded = _run("--out", tmp_path / "t", "--", sys.executable, *torchrun, script, SHARDED="1")
    assert recorded.returncode == 0, recorded.stderr
    ranks = open_trace(tmp_path / "t").ranks
    assert [(rank.head.rank, rank.head.ranks) for rank in ranks] == [(0, 2), (1, 2)]
    sums = [_results(rank, "c10d.allreduce_") for rank in ranks]
    assert len(sums[0]) == 3 + 60
    assert sums[0] == sums[1]
    assert all(sums[0])
    for rank in ranks:
        # FSDP: a layer's gradients are reduced in its own backward pass, the rest when the pass has ended.
        assert len(_results(rank, "c10d._reduce_scatter_base_")) == 2
        assert all(_results(rank, "c10d._reduce_scatter_base_"))
        reduced = [call for call in rank.contents.calls if call.name.startswith("c10d._reduce_scatter_base_")]
        assert {(call.phase, call.step) for call in reduced} == {("backward", 3)}
        # DDP, and here the program, waits for the future of a Work: gloo says later that the Work is completed.
        assert not [call.name for call in rank.contents.calls if "unwaited" in call.flags]
        assert [call.path for call in rank.contents.calls if call.name.startswith("FSDP")] == ["0", ""]
        assert rank.contents.whole
    two_ranks = tmp_path / "both.py"
    two_ranks.write_text(programs.TWO_RANKS)
    command = (sys.executable, two_ranks, script)
    verified = _run("--verify", tmp_path / "t", "--", *command, NOISE="1e-3", MASTER_PORT=_port())
    assert verified.returncode == 1, verified.stdout
    first, second = verified.stdout.split("rank 1:")
    assert "step 1, c10d.allreduce_.default (backward, call 0)" in first
    assert "look at the other ranks" in first
    assert "step 1, aten.full.default (forward, call 0): its inputs have equal bits, its arguments have not" in second
    assert "argument 1  recorded 0.0, now 0.001" in second
    assert f"{script}:18 <module>" in second


def _waited_for(folder: Path, calls: int) -> None:
    """Until a program's trace, still being written, has so many calls."""
    until = time.monotonic() + TIME
    while time.monotonic() < until:
        events = folder / "rank-0" / "events.jsonl"
        if events.exists() and events.read_bytes().count(b'"e":"call"') >= calls:
            return
        time.sleep(0.1)
    pytest.fail("no trace was written in time")


@contextmanager
def _started(folder: Path, program: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A program under a capture, whose trace goes to `t` in the folder, and the number that it says first."""
    script = folder / "program.py"
    script.write_text(program)
    with subprocess.Popen(
        _command("--out", folder / "t", "--", sys.executable, script),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        cwd=ROOT,
        env=_environment(),
    ) as process:
        assert process.stdout is not None
        yield process, int(process.stdout.readline())


def test_a_program_that_is_killed_has_left_what_it_computed_and_its_code_comes_back(tmp_path: Path) -> None:
    with _started(tmp_path, programs.ENDLESS) as (process, program):
        _waited_for(tmp_path / "t", 30)
        live = open_trace(tmp_path / "t").ranks[0].contents
        assert len(live.calls) >= 30
        assert not live.whole
        os.kill(program, signal.SIGKILL)
        _, errors = process.communicate(timeout=TIME)
    assert process.returncode == 128 + signal.SIGKILL
    assert b"Traceback" not in errors
    assert b"cut: the program did not get to the end of its recording" in errors
    after = open_trace(tmp_path / "t").ranks[0]
    assert len(after.contents.calls) >= len(live.calls)
    assert not after.contents.whole
    for value in after.contents.values.values():
        if value.digest:
            assert after.rows(value) is not None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_goes_on_to_the_program_and_a_killed_command_takes_it_along(
    tmp_path: Path, number: signal.Signals
) -> None:
    with _started(tmp_path, programs.SLEEPING) as (process, command):
        os.kill(command, number)
        # Its output ends when the program itself has ended: nothing is left running.
        output, errors = process.communicate(timeout=TIME)
    assert output == b""
    assert process.returncode == 128 + number
    assert b"Traceback" not in errors


def test_a_program_that_computes_nothing_is_no_success(tmp_path: Path) -> None:
    done = _run("--out", tmp_path / "t", "--", sys.executable, "-c", "print(1)")
    assert done.returncode == 2
    assert "nothing was recorded" in done.stderr
