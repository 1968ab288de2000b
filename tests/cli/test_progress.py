"""The progress line: drawn on a terminal, with rate and time left; tests/cli/test_cli.py has it nowhere else."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from moeparity.cli.progress import described
from moeparity.progress import Progress

ROOT = Path(__file__).parents[2]


def step(done: int, work: float) -> Progress:
    return Progress(step="pass", at="layers[3]", done=done, total=100, work=work, unit="op evaluations")


@pytest.mark.parametrize(
    ("progress", "seconds", "expected"),
    [
        (step(20, 480), 2.0, "pass 2, layers[3], 240 op evaluations/s, 0:08 left"),
        (step(1, 12_000), 1.0, "pass 2, layers[3], 12,000 op evaluations/s, 1:39 left"),
        (step(1, 5), 0.0, "pass 2, layers[3]"),
        (
            Progress(step="checking weights", at="a.safetensors", done=50, total=100, work=3000, unit="MB"),
            3.0,
            "checking weights, a.safetensors, 1,000 MB/s, 0:03 left",
        ),
    ],
)
def test_what_the_line_says(progress: Progress, seconds: float, expected: str) -> None:
    assert described(progress, 2, seconds) == expected


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    tokens = tmp_path / "tokens.safetensors"
    save_file({"input_ids": torch.randint(0, 256, (16, 32))}, tokens)
    options = ["--tokens", str(tokens), "--out", str(tmp_path / "out.safetensors"), "--device", "cpu"]
    where = str(ROOT / "checkpoints" / "quickstart")
    return [sys.executable, "-m", "moeparity.cli", "forward", where, *options, "--micro-batch", "4"]


def test_drawn_on_a_terminal_and_gone_afterwards(command: list[str]) -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=theirs, env=environment)
    os.close(theirs)
    drawn = b""
    try:
        while part := os.read(ours, 4096):
            drawn += part
    except OSError:  # the terminal is closed
        pass
    printed, _ = process.communicate()
    os.close(ours)
    assert process.returncode == 0
    assert b"out.safetensors: " in printed
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", drawn.decode())
    assert "checking weights, model.safetensors" in text
    assert re.search(r"pass 1, layers\[\d\], [\d,]+ op evaluations/s, \d+:\d\d left", text)
    assert drawn.endswith((b"\x1b[2K", b"\x1b[?25h\r\x1b[1A\x1b[2K", b"\x1b[1A\x1b[2K"))
