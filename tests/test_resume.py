"""A run of two passes that is killed in the second goes on from the first, and reports the same."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from moeparity.model import open_model
from moeparity.observation import Observed, codec, observe
from moeparity.plan import Options, prepare
from tests.errors.base import BASE

ROOT = Path(__file__).parents[1]
# Raises SIGTERM in the process itself when a pass begins, the number of which is given.
KILLED = """
import os, signal, sys
from moeparity import pipeline
begun, observe, number = 0, pipeline.observe, int(sys.argv.pop(1))
def counted(*args, **kwargs):
    global begun
    begun += 1
    if begun == number:
        os.kill(os.getpid(), signal.SIGTERM)
    return observe(*args, **kwargs)
pipeline.observe = counted
from moeparity.cli import main
try:
    main()
finally:
    print("passes", begun, file=sys.stderr)
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


@pytest.fixture
def bisect(recipe: Path, tmp_path: Path) -> Callable[[int], tuple[subprocess.CompletedProcess[str], Any]]:
    """A bisection killed when its n-th pass begins; what it said, and the report if there is one."""

    def run(kill: int) -> tuple[subprocess.CompletedProcess[str], Any]:
        out = tmp_path / "report.json"
        out.unlink(missing_ok=True)
        command = [
            sys.executable,
            "-c",
            KILLED,
            str(kill),
            "bisect",
            str(recipe),
            "--json",
            str(out),
            "--device",
            "cpu",
        ]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MOEPARITY_CACHE": str(tmp_path / "cache")}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        return done, json.loads(out.read_text("utf-8")) if out.exists() else None

    return run


def without_cost(report: Any) -> Any:
    kept = ("seconds", "memory_estimated", "memory_peak")
    return {**report, "run": {key: value for key, value in report["run"].items() if key not in kept}}


def test_a_killed_run_goes_on_from_its_finished_pass(
    bisect: Callable[[int], tuple[subprocess.CompletedProcess[str], Any]], tmp_path: Path
) -> None:
    whole, expected = bisect(0)
    assert whole.stderr == "passes 2\n"
    assert not list((tmp_path / "cache").rglob("*.safetensors"))

    killed, report = bisect(2)
    assert (killed.returncode, report) == (143, None)
    assert re.search(r"^interrupted: SIGTERM.*1 finished pass is kept in .*the same command goes on", killed.stderr)
    (kept,) = (tmp_path / "cache").rglob("*.safetensors")

    again, report = bisect(0)
    assert again.stderr == "passes 1\n"
    assert again.returncode == whole.returncode
    assert without_cost(report) == without_cost(expected)
    assert not kept.exists()


def test_a_spoilt_pass_is_run_again(
    bisect: Callable[[int], tuple[subprocess.CompletedProcess[str], Any]], tmp_path: Path
) -> None:
    bisect(2)
    (kept,) = (tmp_path / "cache").rglob("*.safetensors")
    kept.write_bytes(kept.read_bytes()[:-1])
    again, report = bisect(0)
    assert "ignored, it is no pass of this run" in again.stderr
    assert again.stderr.endswith("passes 2\n")
    assert report is not None


@pytest.mark.parametrize("options", [Options(), Options(oracle=True, floor=True, swap=("layers[*].moe",))])
def test_what_a_pass_saw_can_be_written_and_read(options: Options, tmp_path: Path) -> None:
    plan = prepare(BASE / "recipe.yaml", device="cpu", options=options)
    seen = observe(plan, plan.toggles)
    plain, tensors = codec(plan.model.graph).encode(seen)
    # Read with the graph of another opening, as the next run will.
    other = codec(open_model(BASE, device="cpu").graph)
    again = other.decode(json.loads(json.dumps(plain)), tensors)
    assert isinstance(again, Observed)
    second, _ = other.encode(again)
    assert second == plain
