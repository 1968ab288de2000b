"""docs/ci.md in a fresh project outside the repository: lock, workflow, hook, plugin and `git bisect`, as it says."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import yaml

from tests.check.baseline.project import Project
from tests.check.test_pytest_plugin import PLUGIN
from tests.check.test_recipes import ROOT, blocks, git, shell_with_moeparity

pytest_plugins = ["pytester"]
Shell = dict[str, str]
FP32 = ("./server.yaml}", "./server.yaml, set: {'layers[0].moe.gate:output': fp32}}")


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    return {**shell_with_moeparity(tmp_path_factory.mktemp("shell")), "COLUMNS": "80"}


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory, shell: Shell) -> Path:
    """A project as the page has it: recipes in a folder, the lock above it, both committed."""
    folder = tmp_path_factory.mktemp("fresh") / "project"
    Project.create(folder / "recipes")
    (update,) = (text for text in blocks("") if "--update" in text)
    git_of(folder, shell, "init", "--quiet")
    done = run(update, folder, shell)
    assert done.returncode == 0, done.stdout + done.stderr
    commit(folder, shell, "v1.0")
    git_of(folder, shell, "tag", "v1.0")
    return folder


@pytest.fixture
def folder(fresh: Path, tmp_path: Path) -> Path:
    """The same, for one test."""
    return Path(shutil.copytree(fresh, tmp_path / "project"))


def run(command: str, folder: Path, shell: Shell) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(["bash", "-ec", command], cwd=folder, env=shell, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stdout + done.stderr
    return done


def git_of(folder: Path, shell: Shell, *arguments: str) -> str:
    return git(folder, shell, *arguments)


def commit(folder: Path, shell: Shell, message: str) -> None:
    git_of(folder, shell, "add", ".")
    git_of(folder, shell, "commit", "--quiet", "--message", message)


def change(folder: Path, name: str, *pairs: tuple[str, str]) -> None:
    Project(folder / "recipes").change(name, *pairs)


def workflow() -> list[dict[str, Any]]:
    (text,) = (text for text in blocks("yaml") if "jobs:" in text)
    job = yaml.safe_load(text)["jobs"]["parity"]
    assert job["env"] == {"OMP_NUM_THREADS": "1"}
    steps: list[dict[str, Any]] = job["steps"]
    return steps


CHECK = "moeparity check recipes/*.parity.yaml --baseline parity.lock.json"


def test_the_job_passes_fails_and_says_why(folder: Path, shell: Shell) -> None:
    (command,) = (step["run"] for step in workflow() if "moeparity check" in step.get("run", ""))
    assert " ".join(command.split()).startswith(CHECK)
    environment = {**shell, "GITHUB_STEP_SUMMARY": str(folder / "summary.md")}
    done = run(command, folder, environment)
    assert done.returncode == 0, done.stderr
    assert "PASS    1 recipe held to what it expects" in done.stderr
    assert (folder / "summary.md").read_text("utf-8").startswith("### moeparity check: PASS\n")
    assert ET.parse(folder / "parity.xml").getroot().get("failures") == "0"
    assert [step["with"]["path"] for step in workflow() if "upload" in step.get("uses", "")] == ["parity.xml"]
    change(folder, "a.parity.yaml", FP32)
    assert run(command, folder, environment).returncode == 1
    summary = (folder / "summary.md").read_text("utf-8")
    assert summary.count("### moeparity check: ") == 2, "a summary is added to"
    assert "| **FAIL** | kept choices of candidate | layers\\[0\\].moe.gate output: bf16 -&gt; fp32, set by" in summary
    assert int(ET.parse(folder / "parity.xml").getroot().get("failures", "0")) >= 2


def test_what_the_page_prints_is_what_is_printed(folder: Path, shell: Shell) -> None:
    (session,) = (text for text in blocks("") if text.startswith("$ moeparity check recipes/a.parity.yaml"))
    first, *lines = session.splitlines()
    change(folder, "a.parity.yaml", FP32)
    done = run(first.removeprefix("$ "), folder, shell)
    assert done.returncode == 1
    # How many nodes have other bits is this machine's; budgets of another may be met or not.
    printed = [re.sub(r"\d+ (of 43|met|not met)", r"N \1", line.strip()) for line in done.stdout.splitlines()]
    for line in lines:
        assert line == "..." or re.sub(r"\d+ (of 43|met|not met)", r"N \1", line.strip()) in printed, line


def test_a_change_is_read_in_git_diff(folder: Path, shell: Shell) -> None:
    change(folder, "a.parity.yaml", FP32)
    assert run(f"{CHECK} --update", folder, shell).returncode == 0
    diff = git_of(folder, shell, "diff", "--unified=0", "parity.lock.json").splitlines()
    added = [line for line in diff if line.startswith("+ ") and '"output": ["fp32"' in line]
    assert len(added) == 1
    assert added[0].startswith('+     "layers[0].moe.gate": {')
    assert run(CHECK, folder, shell).returncode == 0


@pytest.mark.parametrize(
    ("pair", "code", "words"),
    [
        (("./server.yaml", "./nobody.yaml"), 2, "there is no file"),
        (("verdict: inconclusive", "verdict: pass"), 3, "inconclusive"),
    ],
)
def test_the_other_exit_codes(folder: Path, shell: Shell, pair: tuple[str, str], code: int, words: str) -> None:
    """0 and 1 are those of the job above, 70 is in tests/check/test_recipes.py."""
    change(folder, "a.parity.yaml", pair)
    done = run(CHECK, folder, shell)
    assert done.returncode == code
    assert words in " ".join((done.stdout + done.stderr).split())
    assert run(f"{CHECK} --git-bisect", folder, shell).returncode == 125


def test_the_hook_of_the_page(folder: Path, shell: Shell) -> None:
    (text,) = (text for text in blocks("yaml") if ".pre-commit-config.yaml" in text)
    ((wanted,),) = (repo["hooks"] for repo in yaml.safe_load(text)["repos"])
    hooks = {hook["id"]: hook for hook in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text("utf-8"))}
    hook = hooks[wanted["id"]]
    assert (hook["language"], hook["pass_filenames"]) == ("system", False)
    assert all(re.search(hook["files"], name) for name in ("a.parity.yaml", "p.yml", "parity.lock.json"))
    assert not re.search(hook["files"], "README.md")
    command = shlex.join([*shlex.split(hook["entry"]), *wanted["args"]])
    assert run(command, folder, shell).returncode == 0
    change(folder, "server.yaml", ("accumulate: fp32", "accumulate: bf16"))
    done = run(command, folder, shell)
    assert done.returncode == 1
    assert "layers[0].moe.combine accumulate: fp32 -> bf16" in " ".join(done.stdout.split())


def test_the_plugin(folder: Path, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    (text,) = (text for text in blocks("") if text.startswith("$ pytest"))
    words = shlex.split(text.splitlines()[0].removeprefix("$ pytest "))
    monkeypatch.chdir(folder)
    result = pytester.runpytest_inprocess(*PLUGIN, "-p", "no:cacheprovider", "-p", "no:xdist", *words)
    assert result.ret == 0
    for name in ("verdict inconclusive", "baseline", "baseline bits"):
        result.stdout.fnmatch_lines([f"recipes/a.parity.yaml::{name} PASSED*"])


def test_git_bisect_finds_the_commit_that_changed_bits_while_every_expectation_was_met(
    folder: Path, shell: Shell
) -> None:
    changes = {
        "comment": ("rules:", "rules:  # of the server"),
        "broken": ("rules:", "rules: ["),
        "mended": ("rules: [", "rules:"),
        "rounds the sum": ("accumulate: fp32", "accumulate: bf16"),
        "more words": ("# of the server", "# of the server, all of them"),
    }
    for message, pair in changes.items():
        change(folder, "server.yaml", pair)
        commit(folder, shell, message)
    (session,) = (text for text in blocks("") if "good.lock.json" in text)
    done = run("export GIT_PAGER=cat\n" + session, folder, shell)
    assert "is the first bad commit" in done.stdout, done.stdout + done.stderr
    assert git_of(folder, shell, "log", "-1", "--format=%s", "refs/bisect/bad").strip() == "rounds the sum"
    assert "git bisect skip" in git_of(folder, shell, "bisect", "log")
