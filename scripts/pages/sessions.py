"""Sessions in pages: each block names its command in its first line, which is run again."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import torch

from moeparity.inputs.machine import cpu_name
from scripts.pages.page import ROOT
from scripts.pages.situations import SITUATIONS, arguments

KERNELS = ROOT / "tests" / "probe"
"""Where the functions lie that the sessions of docs/probe.md name."""
WIDTH = 118


def probe(block: str) -> str:
    """A session of docs/probe.md; long lines are cut."""
    command = _command(block)
    lines = _output(command, KERNELS, GLOO_SOCKET_IFNAME="lo").rstrip().splitlines()
    return _session(command, [line if len(line) <= WIDTH else f"{line[: WIDTH - 3]}..." for line in lines])


def sweep(block: str) -> str:
    """A sweep of docs/placement.md: the table without its heading, and the machine."""
    command = _command(block)
    _, _, table = _output(f"{command} --device cpu", ROOT, COLUMNS=str(WIDTH)).partition("\n\n")
    lines = [line.rstrip() for line in table.partition("\n\nk3 in nats")[0].splitlines()]
    machine = f"{datetime.now(UTC):%Y-%m-%d}, {cpu_name()}, torch {torch.__version__}, 1 thread"
    return f"{_session(command, lines)}\n\n{machine}"


def variance(block: str) -> str:
    """A session of docs/variance.md, whole: it names its machine; the day stands below it."""
    command = _command(block)
    lines = _output(f"{command} --device cpu", ROOT, COLUMNS="100").rstrip().splitlines()
    return f"{_session(command, [line.rstrip() for line in lines])}\n\n{datetime.now(UTC):%Y-%m-%d}"


def section(title: str) -> Callable[[str], str]:
    """A writer of a session of which only the group of this title is kept; machine and day stand below it."""

    def written(block: str) -> str:
        command = _command(block)
        lines = _output(f"{command} --device cpu", ROOT, COLUMNS="100").splitlines()
        first = lines.index(title)
        end = next(place for place in range(first + 1, len(lines)) if lines[place][:1].strip())
        text = "\n".join(line.rstrip() for line in lines[first:end]).rstrip()
        machine = f"{cpu_name()}, torch {torch.__version__}, 1 thread, {datetime.now(UTC):%Y-%m-%d}"
        return f"{_session(command, ['[...]', *text.splitlines(), '[...]'])}\n\n{machine}"

    return written


def first_screen(name: str) -> Callable[[str], str]:
    """A writer of one situation of docs/first-screen.md, at 80 columns, broken off where it is long."""

    def written(_: str) -> str:
        situation = SITUATIONS[name]
        with tempfile.TemporaryDirectory() as folder:
            situation.make(Path(folder))
            command = [sys.executable, "-m", "moeparity.cli", *arguments(name)]
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "COLUMNS": "80"}
            done = subprocess.run(  # noqa: S603
                command, cwd=folder, capture_output=True, text=True, check=False, env=environment
            )
        lines = (done.stdout or textwrap.fill(done.stderr, 80)).splitlines()
        return _session(situation.command, broken_off(lines, situation.lines))

    return written


def broken_off(lines: list[str], most: int | None) -> list[str]:
    """The lines above the first blank one, where not all are wanted; `most` bounds them."""
    if most is None:
        return lines
    end = lines.index("") if "" in lines else len(lines)
    return [*lines[: min(end, most)], "[...]"]


def _command(block: str) -> str:
    """The command after the prompt."""
    return block.partition("$ ")[2].partition("\n")[0]


def _session(command: str, lines: list[str]) -> str:
    return "\n".join(["```", f"$ {command}", *lines, "```"])


def _output(command: str, folder: Path, **variables: str) -> str:
    """What a command prints; exits where it was refused."""
    name, *arguments = shlex.split(command)
    program = ["-m", "moeparity.cli"] if name == "moeparity" else ["-m", "torch.distributed.run", "--standalone"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    done = subprocess.run(  # noqa: S603
        [sys.executable, *program, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    if done.returncode == 2 or not done.stdout:
        sys.exit(f"{command}\n{done.stderr}{done.stdout}")
    return done.stdout
