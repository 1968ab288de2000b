"""pytest-moeparity in projects of users: items, failures that can be read, and no cost where nothing is there."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path
from unittest.mock import patch

import pytest

import moeparity.bisection.digests.measure
import moeparity.check.pytest_plugin  # noqa: F401
from tests.check.baseline.project import RECIPE, Project
from tests.warm import load

pytest_plugins = ["pytester"]
ROOT = Path(__file__).parents[2]
INSTALLED = any(entry.value == "moeparity.check.pytest_plugin" for entry in entry_points(group="pytest11"))
PLUGIN = () if INSTALLED else ("-p", "moeparity.check.pytest_plugin")
MACHINE = "moeparity.bisection.digests.measure.instruction_set"


@pytest.fixture(autouse=True)
def _loaded() -> None:
    """What a run in this process imports is forgotten after it: loaded twice, a module would not be the patched one."""
    load()


@pytest.fixture
def project(pytester: pytest.Pytester) -> Project:
    return Project.create(pytester.path / "project")


def run(pytester: pytest.Pytester, *words: str) -> pytest.RunResult:
    options = ("-p", "no:cacheprovider", "--parity-device", "cpu", "-rs", "-v", "-p", "no:xdist")
    return pytester.runpytest_inprocess(*PLUGIN, *options, *words)


def outcomes(result: pytest.RunResult) -> dict[str, int]:
    """Items by outcome; that modules of this process cannot be rewritten any more is no matter of the project's."""
    return {outcome: count for outcome, count in result.parseoutcomes().items() if outcome != "warnings"}


def test_the_entry_point_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {"pytest-moeparity": "moeparity.check.pytest_plugin"}


def test_an_item_for_each_expectation_and_a_run_for_each_recipe(pytester: pytest.Pytester, project: Project) -> None:
    expectations = "verdict: pass, first_divergence: none, metrics: {k3: {below: 1e-9, above: 1e-30}}"
    project.change("a.parity.yaml", ("verdict: inconclusive", expectations))
    project.write("not-a-parity.yaml", RECIPE)
    from moeparity.bisection.pipeline import bisect

    with patch("moeparity.bisection.pipeline.bisect", side_effect=bisect) as runs:
        result = run(pytester)
    assert runs.call_count == 1
    assert outcomes(result) == {"failed": 3}
    result.stdout.fnmatch_lines(
        [
            "*a.parity.yaml::verdict pass FAILED*",
            "*a.parity.yaml::k3 above 1e-30 and below 1e-09 FAILED*",
            "*a.parity.yaml::no divergence FAILED*",
            "verdict pass is open: inconclusive: no interval from 2 sequences*",
            "k3 above 1e-30 and below 1e-09 is not met: *e-07",
            "no divergence is not met: layers[[]0].attention.attend",
        ]
    )
    result.stdout.no_fnmatch_line("*Traceback*")


def test_a_lock_beside_a_recipe_is_two_items(pytester: pytest.Pytester, project: Project) -> None:
    assert project.check("--update").returncode == 0
    assert outcomes(run(pytester)) == {"passed": 3}
    project.change("server.yaml", ("accumulate: fp32", "accumulate: bf16"))
    with patch(MACHINE, return_value="GenuineIntel AVX2"):
        result = run(pytester)
    assert outcomes(result) == {"passed": 1, "failed": 1, "skipped": 1}
    result.stdout.fnmatch_lines(
        ["kept choices of candidate is not met: layers[[]0].moe.combine accumulate: fp32 -> bf16 and at 1 more node*"]
    )
    result.stdout.fnmatch_lines(["SKIPPED*nothing is kept of this machine: kept of *, here GenuineIntel AVX2*"])


def test_what_cannot_be_checked_fails_and_stops_no_other(pytester: pytest.Pytester, project: Project) -> None:
    project.write("broken.parity.yaml", "kind: [")
    project.write("nobody.parity.yaml", RECIPE.replace("./server.yaml", "./nobody.yaml"))
    project.write("log.parity.yaml", "kind: log\nfiles: [nothing.jsonl]\ngate: {metric: k3, below: 1e-3}\n")
    project.write(
        "code.parity.yaml",
        RECIPE.replace("./server.yaml}", "./server.yaml, impl: [{call: 'm:f', nodes: ['layers[0].moe.gate']}]}"),
    )
    result = run(pytester)
    assert outcomes(result) == {"passed": 1, "failed": 4}
    result.stdout.fnmatch_lines(
        [
            "*code.parity.yaml:5: impl m:f runs code of its own*",
            "*nobody.parity.yaml:5: profile './nobody.yaml': there is no file *nobody.yaml.*",
        ]
    )
    project.lock.write_text("{")
    result = run(pytester, "project/a.parity.yaml")
    assert outcomes(result) == {"passed": 1, "failed": 2}
    result.stdout.fnmatch_lines(["*parity.lock.json:1: the lock is no JSON*"])


def test_a_mistake_of_moeparity_keeps_its_trace(pytester: pytest.Pytester, project: Project) -> None:
    assert project.lock.exists() is False
    with patch("moeparity.bisection.pipeline.bisect", side_effect=ZeroDivisionError("in a kernel")):
        result = run(pytester)
    assert outcomes(result) == {"failed": 1}
    result.stdout.fnmatch_lines(["*ZeroDivisionError: in a kernel*"])


COLLECTS = """
import sys, pytest
for folder in sys.argv[1:3]:
    pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", "--rootdir", folder, folder, *sys.argv[3:]])
    loaded = sorted(name for name in sys.modules if name.partition(".")[0] in {"torch", "safetensors", "moeparity"})
    print("torch" in loaded, "safetensors" in loaded, len(loaded) < 9 and loaded)
"""


def test_collecting_imports_no_torch_and_costs_nothing_where_no_recipe_is(tmp_path: Path) -> None:
    project = Project.create(tmp_path / "project")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "test_a.py").write_text("def test_a(): pass\n")
    command = [sys.executable, "-c", COLLECTS, str(tmp_path / "other"), str(project.folder), *PLUGIN]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    before = lines.index(
        "False False ['moeparity', 'moeparity.check', 'moeparity.check.pytest_plugin', 'moeparity.errors']"
    )
    assert "a.parity.yaml::verdict inconclusive" in lines[before:]
    assert lines[-1] == "False False False"
