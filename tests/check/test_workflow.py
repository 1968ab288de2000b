"""The GitHub workflow of docs/ci.md: what GitHub's schema takes, and each of its steps run in a clone.

What a runner brings is stood in for: checkout is a clone, setup-python this interpreter, the upload a look at its path.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.check.baseline.project import Project
from tests.check.test_recipes import ROOT, blocks, git, shell_with_moeparity

Shell = dict[str, str]
PASSED, FAILED = "success", "failure"


def text() -> str:
    (workflow,) = (block for block in blocks("yaml") if "jobs:" in block)
    return workflow


def job() -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(text())["jobs"]["parity"]
    return content


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """A shell with moeparity, and with the pip of this interpreter, which takes nothing from a network."""
    pytest.importorskip("pip", reason="needs pip in this environment")
    folder = tmp_path_factory.mktemp("runner")
    variables = {**shell_with_moeparity(folder), "COLUMNS": "80", "PIP_NO_INDEX": "1"}
    pip = folder / "bin" / "pip"
    pip.parent.mkdir(exist_ok=True)
    pip.write_text(f'#!/bin/sh\nexec {sys.executable} -m pip "$@"\n', "utf-8")
    pip.chmod(0o755)
    return {**variables, "PATH": f"{pip.parent}{os.pathsep}{variables['PATH']}"}


@pytest.fixture
def origin(tmp_path: Path, shell: Shell) -> Path:
    """A repository as the page has it: recipes in a folder, requirements, a lock, all committed."""
    folder = tmp_path / "origin"
    Project.create(folder / "recipes")
    (folder / "requirements.txt").write_text("moeparity\ntorch\n", "utf-8")
    git(folder, shell, "init", "--quiet")
    (update,) = (block for block in blocks("") if "--update" in block)
    words = ["bash", "-ec", update]
    done = subprocess.run(words, cwd=folder, env=shell, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    commit(folder, shell)
    return folder


def commit(folder: Path, shell: Shell) -> None:
    git(folder, shell, "add", ".")
    git(folder, shell, "commit", "--quiet", "--message", "a commit")


def ran(origin: Path, place: Path, shell: Shell) -> tuple[dict[str, str], Path]:
    """Every step of the job in a clone: how each ended, by what it is; after a failure only `if: always()`."""
    clone = place / "work"
    outcome: dict[str, str] = {}
    variables = {**shell, **job()["env"], "GITHUB_STEP_SUMMARY": str(place / "summary.md"), "CI": "true"}
    (place / "summary.md").touch()
    for step in job()["steps"]:
        name = step.get("uses", step.get("run", "")).split()[0].partition("@")[0]
        name = "check" if "moeparity check" in step.get("run", "") else name
        if FAILED in outcome.values() and step.get("if") != "always()":
            outcome[name] = "skipped"
            continue
        outcome[name] = PASSED if _step(step, origin, clone, variables) else FAILED
    return outcome, clone


def _step(step: Mapping[str, Any], origin: Path, clone: Path, variables: Shell) -> bool:
    if "run" in step:
        command = ["bash", "--noprofile", "--norc", "-e", "-c", step["run"]]
        done = subprocess.run(command, cwd=clone, env=variables, capture_output=True, text=True, check=False)
        assert "Traceback" not in done.stdout + done.stderr
        return done.returncode == 0
    action = step["uses"].partition("@")[0]
    if action == "actions/checkout":
        git(origin.parent, variables, "clone", "--quiet", str(origin), str(clone))
        return True
    if action == "actions/setup-python":
        (least,) = re.findall(r'requires-python = ">=([\d.]+)"', (ROOT / "pyproject.toml").read_text("utf-8"))
        return _numbers(step["with"]["python-version"]) >= _numbers(least)
    assert action == "actions/upload-artifact"
    return (clone / step["with"]["path"]).exists()


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def test_every_step_runs_in_a_clone_and_a_change_fails_the_job(tmp_path: Path, origin: Path, shell: Shell) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    outcome, clone = ran(origin, first, shell)
    assert outcome == dict.fromkeys(outcome, PASSED)
    assert list(outcome) == ["actions/checkout", "actions/setup-python", "pip", "check", "actions/upload-artifact"]
    assert (first / "summary.md").read_text("utf-8").startswith("### moeparity check: PASS\n")
    assert git(clone, shell, "status", "--porcelain").split() == ["??", "parity.xml"], "a job leaves what it uploads"
    Project(origin / "recipes").change("server.yaml", ("accumulate: fp32", "accumulate: bf16"))
    commit(origin, shell)
    second.mkdir()
    outcome, _ = ran(origin, second, shell)
    assert outcome["check"] == FAILED
    assert outcome["actions/upload-artifact"] == PASSED, "what failed can be looked at"
    assert "FAIL" in (second / "summary.md").read_text("utf-8")


def test_what_is_not_installed_fails_before_the_check(tmp_path: Path, origin: Path, shell: Shell) -> None:
    (origin / "requirements.txt").write_text("moeparity-that-nobody-has\n", "utf-8")
    commit(origin, shell)
    outcome, _ = ran(origin, tmp_path, shell)
    assert (outcome["pip"], outcome["check"]) == (FAILED, "skipped")


@pytest.mark.parametrize(
    ("key", "replacement", "code"), [("runs-on:", "runs-on:", 0), ("runs-on:", "run-on:", 1), ("- uses:", "- use:", 1)]
)
def test_the_workflow_is_as_githubs_schema_asks(tmp_path: Path, key: str, replacement: str, code: int) -> None:
    pytest.importorskip("check_jsonschema", reason="needs check-jsonschema: pip install 'moeparity[test]'")
    file = tmp_path / "parity.yaml"
    file.write_text(text().replace(key, replacement), "utf-8")
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
