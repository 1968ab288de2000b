"""The progress line: drawn on a terminal, with rate and time left; tests/cli/test_cli.py has it nowhere else."""

from __future__ import annotations

import json
import math
import os
import pty
import re
import subprocess
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from moeparity.cli.progress import Line, described
from moeparity.documents.checked import shipped
from moeparity.progress import Progress
from tests.command import ROOT, launcher

RECIPE = """kind: recipe
checkpoint: .
weights: synthetic(0)
tokens: {file: tokens.safetensors, sampled_from: candidate}
reference: {profile: hf-eager}
candidate: {profile: hf-default}
gate: {metric: k3, below: 1.0e-4}
"""


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
    return ["forward", where, *options, "--micro-batch", "4"]


def on_a_terminal(command: list[str]) -> tuple[int, str, bytes, float]:
    """Exit code, what is printed, what is drawn, and the seconds of the longest silence once something is drawn."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [*launcher(), *command],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=theirs,
        env=environment,
        text=True,
    )
    os.close(theirs)
    drawn, silence, clock = b"", 0.0, math.inf
    try:
        while part := os.read(ours, 4096):
            silence, clock = max(silence, time.monotonic() - clock), time.monotonic()
            drawn += part
    except OSError:  # the terminal is closed
        pass
    printed, _ = process.communicate()
    os.close(ours)
    return process.returncode, printed, drawn, silence


def without_codes(drawn: bytes) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", drawn.decode())


def test_drawn_on_a_terminal_and_gone_afterwards(command: list[str]) -> None:
    code, printed, drawn, _ = on_a_terminal(command)
    assert code == 0
    assert "out.safetensors: " in printed
    text = without_codes(drawn)
    assert "checking weights, model.safetensors" in text
    assert re.search(r"pass 1, layers\[\d\], [\d,]+ op evaluations/s, \d+:\d\d left", text)
    assert drawn.endswith((b"\x1b[2K", b"\x1b[?25h\r\x1b[1A\x1b[2K", b"\x1b[1A\x1b[2K"))


def test_weights_that_are_made_are_followed_from_the_first_second(tmp_path: Path) -> None:
    """A layer whose weights take a second or more to make, and next to nothing to run."""
    config = json.loads(shipped("configs", "json")["qwen3_moe"].read_text("utf-8"))
    config |= {"num_hidden_layers": 1, "num_experts": 64, "vocab_size": 512}
    (tmp_path / "config.json").write_text(json.dumps(config), "utf-8")
    save_file({"input_ids": torch.zeros(1, 2, dtype=torch.int64)}, tmp_path / "tokens.safetensors")
    (tmp_path / "recipe.yaml").write_text(RECIPE, "utf-8")
    code, _, drawn, silence = on_a_terminal(["bisect", str(tmp_path / "recipe.yaml"), "--device", "cpu"])
    assert code in {0, 1, 3}
    text = without_codes(drawn)
    reports = re.findall(r"waiting for weights, layers\[0\], [\d,]+ MB/s, \d+:\d\d left", text)
    assert len(reports) > 3
    assert silence < 1


def test_steps_that_take_turns_keep_their_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass that waits for weights in its midst is one pass, and its rate counts the time that it waited."""
    clock, drawn = [0.0], []
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])

    class Bar:
        def add_task(self, *_: object, **__: object) -> int:
            return 0

        def update(self, _: int, *, description: str, **__: object) -> None:
            drawn.append(description)

    line = Line(Bar())

    def heard(seconds: float, step: str, done: int, total: int) -> None:
        clock[0] = seconds
        line(Progress(step=step, at="layers[0]", done=done, total=total, work=done, unit="units"))

    heard(10, "waiting for weights", 0, 100)
    heard(20, "waiting for weights", 50, 100)
    heard(20, "pass", 1, 4)
    heard(30, "pass", 2, 4)
    heard(40, "waiting for weights", 60, 100)
    heard(50, "waiting for weights", 100, 100)
    heard(60, "pass", 4, 4)
    heard(70, "waiting for weights", 0, 100)
    heard(80, "pass", 1, 4)
    assert drawn == [
        "waiting for weights, layers[0]",
        "waiting for weights, layers[0], 5 units/s, 0:10 left",
        "pass 1, layers[0]",
        "pass 1, layers[0], 0 units/s, 0:10 left",
        "waiting for weights, layers[0], 2 units/s, 0:20 left",
        "waiting for weights, layers[0], 2 units/s, 0:00 left",
        "pass 1, layers[0], 0 units/s, 0:00 left",
        "waiting for weights, layers[0]",
        "pass 2, layers[0], 0 units/s, 0:30 left",
    ]
