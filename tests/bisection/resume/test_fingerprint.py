"""The fingerprint: the same for the same run, in another process too; another one for whatever decides the result."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from moeparity.bisection.prepare import prepare
from moeparity.bisection.resume.fingerprint import fingerprint
from tests.errors.base import BASE

CODE = (
    "import sys; from pathlib import Path; import torch; torch.set_num_threads(1); "
    "from moeparity.bisection.prepare import prepare; "
    "from moeparity.bisection.resume.fingerprint import fingerprint; "
    "print(fingerprint(prepare(Path(sys.argv[1]), device='cpu')))"
)


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    shutil.copytree(BASE, tmp_path / "run")
    return tmp_path / "run" / "recipe.yaml"


def of(recipe: Path) -> str:
    return fingerprint(prepare(recipe, device="cpu"))


def test_the_same_in_another_process(recipe: Path) -> None:
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    done = subprocess.run(
        [sys.executable, "-c", CODE, recipe], capture_output=True, text=True, env=environment, check=True
    )
    assert done.stdout.strip() == of(recipe) == of(recipe)
    assert len(of(recipe)) == 64


def text(before: str, after: str) -> Callable[[Path], None]:
    def change(recipe: Path) -> None:
        content = recipe.read_text("utf-8")
        assert before in content
        recipe.write_text(content.replace(before, after), "utf-8")

    return change


def one_token(recipe: Path) -> None:
    path = recipe.with_name("tokens.safetensors")
    tensors = load_file(path)
    tensors["input_ids"][0, 0] ^= 1
    save_file(tensors, path)


def one_scored_token_less(recipe: Path) -> None:
    path = recipe.with_name("tokens.safetensors")
    tensors = load_file(path)
    tensors["loss_mask"][0, 1] = 0
    save_file(tensors, path)


def touched_weights(recipe: Path) -> None:
    os.utime(recipe.with_name("model.safetensors"), ns=(1, 1))


def config(recipe: Path) -> None:
    path = recipe.with_name("config.json")
    before = path.stat()
    path.write_text(path.read_text("utf-8").replace("1e-06", "2e-06"), "utf-8")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def candidate_set(recipe: Path) -> None:
    recipe.write_text(recipe.read_text("utf-8") + "by: node\n", "utf-8")


@pytest.mark.parametrize(
    "change", [text("1e-4", "2e-4"), one_token, one_scored_token_less, touched_weights, config, candidate_set]
)
def test_a_change_of_the_run_changes_it(recipe: Path, change: Callable[[Path], None]) -> None:
    before = of(recipe)
    change(recipe)
    assert of(recipe) != before


def test_the_machine_belongs_to_it(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = prepare(recipe, device="cpu")
    before = fingerprint(study)
    with monkeypatch.context() as patched:
        patched.setenv("ONEDNN_MAX_CPU_ISA", "another than this one")
        changed = {fingerprint(study)}
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    changed.add(fingerprint(study))
    monkeypatch.undo()
    assert fingerprint(study) == before
    assert len(changed | {before}) == 3


def test_moeparity_itself_belongs_to_it(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = prepare(recipe, device="cpu")
    before = fingerprint(study)
    monkeypatch.setattr("moeparity.bisection.resume.fingerprint.source", lambda: "another")
    assert fingerprint(study) != before
