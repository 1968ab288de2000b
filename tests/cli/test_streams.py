"""Exit codes and files are the same whatever becomes of standard output and standard error."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

import pytest

from tests.command import inside, launcher
from tests.errors.base import BASE

RECIPE = f"""
kind: recipe
checkpoint: {BASE}
weights: synthetic(0)
tokens: {{file: {BASE}/tokens.safetensors, sampled_from: candidate}}
reference: {{profile: hf-eager, dtype: fp32, micro_batch: 2}}
candidate: {{profile: hf-eager, dtype: DTYPE, micro_batch: 2}}
gate: {{metric: k3, below: 1.0e-9}}
"""
CODES = {"same.yaml": 0, "other.yaml": 3, "broken.yaml": 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("streams")
    (folder / "same.yaml").write_text(RECIPE.replace("DTYPE", "fp32"), "utf-8")
    (folder / "other.yaml").write_text(RECIPE.replace("DTYPE", "bf16"), "utf-8")
    (folder / "broken.yaml").write_text(RECIPE.replace("DTYPE", "fp31"), "utf-8")
    return folder


def shell(
    folder: Path, recipe: str, redirection: str, start: Sequence[str] | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    moeparity = shlex.join(start or launcher())
    command = f"{moeparity} bisect {recipe} --device cpu --json {recipe}.json {redirection}"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"],
        cwd=folder,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
        env=environment,
        timeout=120,
    )


@pytest.mark.parametrize(
    ("recipe", "redirection"),
    [
        ("same.yaml", "<&- >&- 2>&-"),
        ("other.yaml", "| head -c 1"),
        ("broken.yaml", "2>/dev/full"),
    ],
)
def test_a_stream_that_nobody_reads_changes_no_exit_code(folder: Path, recipe: str, redirection: str) -> None:
    (folder / f"{recipe}.json").unlink(missing_ok=True)
    done = shell(folder, recipe, redirection)
    assert done.returncode == CODES[recipe]
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    if CODES[recipe] != 2:
        status = json.loads((folder / f"{recipe}.json").read_text("utf-8"))["verdict"]["status"]
        assert status == {0: "pass", 3: "inconclusive"}[CODES[recipe]]


def test_a_report_that_could_not_be_printed_is_no_answer(folder: Path) -> None:
    done = shell(folder, "other.yaml", ">/dev/full")
    assert done.returncode == 2
    assert done.stderr == (
        "error: standard output: cannot be written: No space left on device. What was to be printed is lost.\n"
    )
    assert (folder / "other.yaml.json").exists()


def test_a_locale_that_lacks_a_character(folder: Path) -> None:
    name = "schön → 模型.yaml"
    (folder / name).write_text((folder / "broken.yaml").read_text("utf-8"), "utf-8")
    # Python reads the variable when it starts.
    done = shell(folder, f"'{name}'", "", [sys.executable, "-m", "moeparity.cli"], PYTHONIOENCODING="ascii")
    assert done.returncode == 2
    assert "\\u2192" in done.stderr


def test_what_nobody_foresaw_is_70_in_one_line_and_a_trace_on_request(folder: Path) -> None:
    def wrong(*_: object, **__: object) -> object:
        raise IndexError("a mistake\nof ours")

    for options in ((), ("--debug",)):
        with patch("moeparity.bisection.pipeline.bisect", wrong):
            done = inside(*options, "bisect", folder / "same.yaml")
        assert done.returncode == 70
        assert "moeparity failed, which is a mistake of its own: IndexError: a mistake (" in done.stderr
        assert ("Traceback" in done.stderr) == bool(options)
        if not options:
            assert done.stderr.count("\n") == 1


def test_too_little_memory_is_no_mistake_of_ours(folder: Path) -> None:
    loader = ImportError("libtorch_cpu.so: failed to map segment from shared object")
    torch = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9")
    for error in (MemoryError(), torch, loader):
        with patch("moeparity.bisection.pipeline.bisect", side_effect=error):
            done = inside("bisect", folder / "same.yaml")
        assert done.returncode == 2
        assert "the system gave no more memory" in done.stderr


@pytest.mark.parametrize(("options", "code"), [([], 2), (["check", "--git-bisect"], 125)])
def test_commands_that_cannot_be_loaded_are_no_divergence(options: list[str], code: int) -> None:
    program = (
        "import sys\nclass Refuse:\n    def find_spec(self, name, *_):\n"
        "        if name == 'moeparity.cli.commands':\n            raise MemoryError('a\\nb')\n"
        "sys.meta_path.insert(0, Refuse())\nfrom moeparity.cli import main\nmain()\n"
    )
    done = subprocess.run([sys.executable, "-c", program, *options], capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1


def test_a_file_on_standard_output_leaves_the_report_to_standard_error(folder: Path) -> None:
    for name in ("-", "/dev/stdout"):
        done = inside("bisect", folder / "same.yaml", "--device", "cpu", "--json", name)
        assert done.returncode == 0
        assert json.loads(done.stdout)["verdict"]["status"] == "pass"
        assert "PASS" in done.stderr


def test_a_module_of_the_working_directory_is_not_taken_for_a_library(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise SystemExit(99)", "utf-8")
    done = subprocess.run([sys.executable, "-m", "moeparity.cli", "--version"], cwd=tmp_path, check=False)
    assert done.returncode == 0
