"""A trial that can't run is left out and named; the rest of the report comes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from moeparity.bisection.pipeline import bisect
from moeparity.bisection.prepare import prepare
from moeparity.bisection.trials import TrialKey
from moeparity.engine import passes
from moeparity.engine.lockstep import run
from moeparity.engine.walker import WalkersRefusedError
from moeparity.errors import SpecError
from moeparity.ops.attribute import RefusedError
from tests.planted.places import random_tokens, write_recipe

SCATTERED = {
    "profile": "hf-eager",
    "placement": {"tensor": 2, "sequence": True},
    "set": {"**.reduce:collective": "nccl.ring"},
}
TABLE = {"profile": "hf-eager", "placement": {"tensor": 2}, "set": {"**.reduce:collective": "trtllm.all_reduce"}}


def recipe(folder: Path, checkpoint: Path, reference: dict[str, Any], candidate: dict[str, Any]) -> Path:
    return write_recipe(folder, checkpoint, {"input_ids": random_tokens(3, 8)}, reference, candidate)


def test_a_mixture_that_no_message_can_have_is_named_before_and_in_the_report(tmp_path: Path, qwen3_moe: Path) -> None:
    path = recipe(tmp_path, qwen3_moe, SCATTERED, TABLE)
    command = [sys.executable, "-m", "moeparity.cli", "bisect", str(path), "--device", "cpu"]
    done = subprocess.run([*command, "--json", str(tmp_path / "r.json")], capture_output=True, text=True, check=False)
    assert done.returncode in {0, 1, 3}, done.stderr
    (group, *_) = json.loads((tmp_path / "r.json").read_text("utf-8"))["left_out"]
    assert "trtllm.one_shot" in group["reason"]
    assert [*group["alone"], *group["restored"]]
    assert "Left out: trials that cannot run" in done.stdout
    planned = subprocess.run([*command, "--dry-run"], capture_output=True, text=True, check=True)
    assert all(name in planned.stdout.replace("\n", " ") for name in group["alone"])


def test_a_side_that_can_t_run_is_told_before_any_weight_is_read(
    tmp_path: Path, qwen3_moe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unread(*_: Any, **__: Any) -> None:
        raise AssertionError

    monkeypatch.setattr("moeparity.inputs.model.check_values", unread)
    side = {**TABLE, "placement": {"tensor": 2, "sequence": True}}
    with pytest.raises(SpecError, match=r"attention\.reduce:collective: trtllm\.one_shot"):
        prepare(recipe(tmp_path, qwen3_moe, {"profile": "hf-eager"}, side), device="cpu")


def test_what_a_kernel_refuses_in_the_pass_is_dropped_and_the_report_comes(
    tmp_path: Path, qwen3_moe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"layers[*].moe.combine:accumulate": "fp32", "layers[1].moe.gate:output": "fp32"}
    path = recipe(tmp_path, qwen3_moe, {"profile": "hf-eager"}, {"profile": "hf-eager", "set": settings})
    whole = bisect(path, device="cpu")
    bad = TrialKey("alone", whole.toggles[0].name)

    def refusing(walkers: list[Any], *args: Any, **more: Any) -> Any:
        if bad in {walker.name for walker in walkers}:
            raise WalkersRefusedError([bad], RefusedError("output", "not here", node="layers[0].moe.gate"))
        return run(walkers, *args, **more)

    monkeypatch.setattr(passes, "run", refusing)
    report = bisect(path, device="cpu")
    assert [(group.reason, group.alone, group.restored) for group in report.left_out] == [
        ("layers[0].moe.gate:output: not here", (bad.of,), ())
    ]
    assert report.toggles[0].alone is None
    assert (report.verdict, report.toggles[1:]) == (whole.verdict, whole.toggles[1:])
