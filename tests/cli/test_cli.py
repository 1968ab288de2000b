"""The commands as a user runs them, on the shipped checkpoint: each in a process of its own once."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import moeparity
from moeparity.engine.forward import forward
from moeparity.numerics.bits import same_bits
from tests.command import ROOT, alone, executable, inside

CHECKPOINT = ROOT / "checkpoints" / "quickstart"


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokens") / "tokens.safetensors"
    save_file({"input_ids": torch.randint(0, 256, (3, 11), generator=torch.Generator().manual_seed(1))}, path)
    return path


def test_forward_writes_what_python_returns(tokens: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    options = ["--profile", "hf-default", "--micro-batch", "2", "--save", "layers[1].moe.combine", "--device", "cpu"]
    process = executable("forward", CHECKPOINT, "--tokens", tokens, "--out", out, *options)
    assert (process.returncode, process.stderr) == (0, "")
    assert process.stdout.count("\n") == 1, "no progress line where there is no terminal"
    tensors = load_file(out)
    ids = load_file(tokens)["input_ids"]
    expected = forward(
        CHECKPOINT, ids, profile="hf-default", micro_batch=2, save=["layers[1].moe.combine"], device="cpu"
    )
    assert tensors.keys() == expected.keys()
    assert {f"layers.{i}.router.{part}" for i in range(4) for part in ("ids", "weights")} < tensors.keys()
    assert tensors["logits"].shape == (3, 11, 256)
    assert tensors["layers.0.router.ids"].shape == (33, 6)
    assert tensors["layers.1.moe.combine"].shape == (3, 11, 96)
    assert all(same_bits(tensors[key], expected[key]) for key in expected)


def test_forward_in_another_dtype(tokens: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    process = inside("forward", CHECKPOINT, "--tokens", tokens, "--out", out, "--dtype", "fp32", "--device", "cpu")
    assert process.returncode == 0, process.stderr
    assert load_file(out)["logits"].dtype == torch.float32


def test_bisect_prints_and_writes_the_same(tokens: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        f"kind: recipe\ncheckpoint: {CHECKPOINT}\n"
        f"tokens: {{file: {tokens}, sampled_from: candidate}}\n"
        "reference: {profile: hf-eager}\ncandidate: {profile: hf-default}\n"
        "gate: {metric: k3, below: 1e-4}\n"
    )
    process = alone("bisect", recipe, "-v", "--json", tmp_path / "report.json", "--device", "cpu")
    report = json.loads((tmp_path / "report.json").read_text())
    assert process.returncode == {"pass": 0, "fail": 1, "inconclusive": 3}[report["verdict"]["status"]]
    assert report["schema"] == "moeparity.report/3"
    assert report["verdict"]["status"].upper() in process.stdout
    assert report["roots"][0]["node"] in process.stdout
    assert all(toggle["name"] in process.stdout for toggle in report["toggles"])


def test_identical_sides_exit_0(tokens: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        f"kind: recipe\ncheckpoint: {CHECKPOINT}\n"
        f"tokens: {{file: {tokens}, sampled_from: candidate}}\n"
        "reference: {profile: hf-eager}\ncandidate: {profile: hf-eager}\n"
        "gate: {metric: k3, below: 1e-4}\n"
    )
    process = inside("bisect", recipe, "--device", "cpu")
    assert process.returncode == 0, process.stdout + process.stderr
    assert "starts  nowhere: no node gives other bits on equal inputs" in process.stdout


def test_show_prints_values_origins_and_toggles() -> None:
    process = alone("show", "plan", "recipes/rounding.yaml")
    assert process.returncode == 0, process.stderr
    assert "graphs/profiles/hf-default.yaml:" in process.stdout
    assert "op combine:accumulate" in process.stdout
    checkpoint = inside("show", "plan", "checkpoints/quickstart", "--profile", "hf-default")
    assert checkpoint.returncode == 0, checkpoint.stderr
    assert "sdpa" in checkpoint.stdout
    assert "toggles" not in checkpoint.stdout


def test_ops_lists_every_op_and_one_in_full() -> None:
    everything, text = executable("show", "ops"), inside("show", "ops", "combine")
    assert everything.returncode == text.returncode == 0
    assert all(name in everything.stdout for name in ("rms_norm", "mla", "lm_head", "router"))
    assert "read when leaves is expert" in text.stdout


def test_the_first_sight_names_every_command_in_a_whole_sentence() -> None:
    process = inside("--help")
    panels = re.split(r"^(Everyday|Evidence of real programs|A closer look):\n", process.stdout, flags=re.MULTILINE)
    assert panels[1::2] == ["Everyday", "Evidence of real programs", "A closer look"]
    commands = [panel.strip("\n").splitlines() for panel in panels[2::2]]
    assert [len(panel) for panel in commands] == [6, 7, 8]
    assert all(line.endswith(".") and not line.endswith("...") for panel in commands for line in panel)
    assert max(map(len, process.stdout.splitlines())) <= 80


@pytest.mark.parametrize(("group", "count"), [("kernel", 3), ("runs", 2), ("show", 6)])
def test_so_does_that_of_a_group(group: str, count: int) -> None:
    process = inside(group, "--help")
    commands = process.stdout.partition("Commands:\n")[2].splitlines()
    assert len(commands) == count
    assert all(line.endswith(".") and not line.endswith("...") for line in commands)


def test_the_version_is_that_of_the_package() -> None:
    process = inside("--version")
    assert (process.returncode, process.stdout) == (0, f"moeparity {moeparity.__version__}\n")


def test_piped_lines_end_where_their_text_ends() -> None:
    assert not [
        line for line in inside("show", "plan", "recipes/quickstart.yaml").stdout.splitlines() if line != line.rstrip()
    ]
