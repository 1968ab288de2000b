"""A run of two passes that is killed in the second goes on from the first, and reports the same."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from safetensors.torch import save_file

from moeparity.bisection.measures import codec
from moeparity.bisection.observe import observe
from moeparity.bisection.observed import Observed
from moeparity.bisection.options import Options
from moeparity.bisection.prepare import prepare
from moeparity.inputs.model import open_model
from moeparity.output.json import digest
from tests.command import Done, inside
from tests.errors.base import BASE

# Raises SIGTERM in the process itself when its second pass begins.
KILLED = """
import os, signal
from moeparity.bisection import pipeline
begun, observe = 0, pipeline.observe
def counted(*args, **kwargs):
    global begun
    begun += 1
    if begun == 2:
        os.kill(os.getpid(), signal.SIGTERM)
    return observe(*args, **kwargs)
pipeline.observe = counted
from moeparity.cli import main
main()
"""


@pytest.fixture
def recipe(qwen3_moe: Path, tmp_path: Path) -> Path:
    ids = torch.randint(0, 512, (4, 9), generator=torch.Generator().manual_seed(0))
    save_file({"input_ids": ids}, tmp_path / "tokens.safetensors")
    path = tmp_path / "recipe.yaml"
    path.write_text(
        f"kind: recipe\ncheckpoint: {qwen3_moe}\ntokens: {{file: tokens.safetensors, sampled_from: candidate}}\n"
        "reference: {profile: hf-eager}\ncandidate: {profile: hf-default}\ngate: {metric: k3, below: 1e-6}\nsplit: 1\n",
        "utf-8",
    )
    return path


@dataclass(frozen=True)
class Run:
    """A bisection: what it said, how many passes it began, and its report."""

    done: Done
    passes: int
    report: Any


@pytest.fixture
def bisect(recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Run]:
    monkeypatch.setenv("MOEPARITY_CACHE", str(tmp_path / "cache"))
    # As in the process that is killed: the environment is part of what makes a pass this run's.
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def run() -> Run:
        out = tmp_path / "report.json"
        with patch("moeparity.bisection.pipeline.observe", wraps=observe) as observed:
            done = inside("bisect", recipe, "--json", out, "--device", "cpu")
        return Run(done, observed.call_count, json.loads(out.read_text("utf-8")))

    return run


def killed(recipe: Path, folder: Path) -> Done:
    """The same in a process of its own, killed when its second pass begins."""
    out = folder / "killed.json"
    command = [sys.executable, "-c", KILLED, "bisect", str(recipe), "--json", str(out), "--device", "cpu"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MOEPARITY_CACHE": str(folder / "cache")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert not out.exists()
    return done


def without_cost(report: Any) -> Any:
    assert report["digest"] == digest(report)
    cost_keys = ("seconds", "memory_estimated", "memory_peak")
    return {**report, "cost": {key: value for key, value in report["cost"].items() if key not in cost_keys}}


def test_a_killed_run_goes_on_from_its_finished_pass(recipe: Path, bisect: Callable[[], Run], tmp_path: Path) -> None:
    whole = bisect()
    assert (whole.passes, whole.done.stderr) == (2, "")
    assert not list((tmp_path / "cache").rglob("*.safetensors"))

    done = killed(recipe, tmp_path)
    assert done.returncode == 143
    assert re.search(r"^interrupted: SIGTERM.*1 finished pass is kept in .*the same command goes on", done.stderr)
    (stored_pass,) = (tmp_path / "cache").rglob("*.safetensors")
    finished = stored_pass.read_bytes()

    again = bisect()
    assert (again.passes, again.done.returncode) == (1, whole.done.returncode)
    assert without_cost(again.report) == without_cost(whole.report)
    assert not stored_pass.exists()

    # A pass that is spoilt is run again.
    stored_pass.parent.mkdir(parents=True, exist_ok=True)
    stored_pass.write_bytes(finished[:-1])
    once_more = bisect()
    assert "ignored, it is no pass of this run" in once_more.done.stderr
    assert once_more.passes == 2
    assert without_cost(once_more.report) == without_cost(whole.report)


@pytest.mark.parametrize("options", [Options(), Options(oracle=True, floor=True, swap=("layers[*].moe",))])
def test_what_a_pass_saw_can_be_written_and_read(options: Options, tmp_path: Path) -> None:
    study = prepare(BASE / "recipe.yaml", device="cpu", options=options)
    observed = observe(study, study.toggles)
    plain, tensors = codec(study.model.graph).encode(observed)
    # Read with the graph of another opening, as the next run will.
    reopened = codec(open_model(BASE, device="cpu").graph)
    again = reopened.decode(json.loads(json.dumps(plain)), tensors)
    assert isinstance(again, Observed)
    second, _ = reopened.encode(again)
    assert second == plain
