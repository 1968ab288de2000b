"""`moeparity check` as CI and git run it, on the shipped checkpoint and a handful of tokens."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch
from xml.etree import ElementTree as ET

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner, Result

from moeparity.check.recipes import check
from moeparity.cli.commands import app
from moeparity.plan.spec import reader
from tests.command import launcher

ROOT = Path(__file__).parents[2]
CHECKPOINT = ROOT / "checkpoints" / "quickstart"
DOCUMENT = (ROOT / "docs" / "ci.md").read_text("utf-8")
EQUAL = "expect: {first_divergence: none, culprits: none}\n"
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
"""As users run it: `moeparity` is found, which an environment that is not activated does not do by itself."""


def blocks(language: str) -> list[str]:
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", DOCUMENT, re.DOTALL | re.MULTILINE)
    return [text for tag, text in fences if tag == language]


def write_recipe(folder: Path, name: str = "parity.yaml", *, candidate: str = "hf-eager", expect: str = EQUAL) -> Path:
    ids = torch.randint(0, 256, (2, 6), generator=torch.Generator().manual_seed(3))
    folder.mkdir(parents=True, exist_ok=True)
    save_file({"input_ids": ids}, folder / "tokens.safetensors")
    (folder / name).write_text(
        f"kind: recipe\ncheckpoint: {CHECKPOINT}\n"
        "tokens: {file: tokens.safetensors, sampled_from: candidate}\n"
        f"reference: {{profile: hf-eager}}\ncandidate: {{profile: {candidate}}}\n"
        f"gate: {{metric: k3, below: 1e-4}}\n{expect}"
    )
    return folder / name


@pytest.fixture(scope="module")
def recipes(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """A recipe for each exit code."""
    folder = tmp_path_factory.mktemp("recipes")
    rounded = "set: {'layers[0].moe.gate:output': fp32}"
    recipe_files = {
        0: write_recipe(folder, "met.yaml"),
        1: write_recipe(folder, "not-met.yaml", candidate=f"hf-eager, {rounded}"),
        2: write_recipe(folder, "broken.yaml", expect="expect: {culprits: [nobody]}\n"),
        # Two sequences with unequal bits pass no gate, and k3 is far from failing this one.
        3: write_recipe(folder, "open.yaml", candidate=f"hf-eager, {rounded}", expect=""),
    }
    text = recipe_files[3].read_text().replace("below: 1e-4", "below: 1000")
    recipe_files[3].write_text(text)
    return {code: str(path) for code, path in recipe_files.items()}


def run(*arguments: str, columns: int = 400) -> Result:
    return CliRunner().invoke(app, ["check", "--device", "cpu", *arguments], env={"COLUMNS": str(columns)})


def finding_lines(done: Result, recipe: str) -> list[str]:
    """The words of a recipe's findings: below its line, up to the next recipe's or the last line."""
    lines = done.stdout.splitlines()[:-1]
    below = lines[lines.index(recipe) + 1 :] if recipe in lines else []
    return [line.split()[0] for line in itertools.takewhile(lambda line: line and not line.startswith("/"), below)]


@pytest.mark.parametrize("codes", [(0,), (1,), (2,), (3,), (0, 3), (3, 1), (1, 2, 0)])
def test_exit_codes(recipes: dict[int, str], codes: tuple[int, ...]) -> None:
    files = [recipes[code] for code in codes]
    expected = next(code for code in (2, 1, 3, 0) if code in codes)
    done = run(*files)
    assert done.exit_code == expected, done.output
    for code, recipe in zip(codes, files, strict=True):
        assert finding_lines(done, recipe) == {0: ["ok", "ok"], 1: ["FAIL", "FAIL"], 2: [], 3: ["inconclusive"]}[code]
    assert ("names 'nobody', which is no toggle" in done.stderr) == (2 in codes)


@pytest.mark.parametrize("columns", [80, 100])
def test_lines_fit_and_long_paths_lose_their_middle(recipes: dict[int, str], tmp_path: Path, columns: int) -> None:
    folder = tmp_path / "/".join(["a-folder-with-a-long-name"] * 6)
    shutil.copytree(Path(recipes[0]).parent, folder)
    recipe = (folder / Path(recipes[0]).name).rename(folder / "recipe.yaml")
    done = run(recipes[0], str(recipe), columns=columns)
    assert max(map(len, done.stdout.splitlines())) <= columns
    assert any("..." in line and line.endswith("/recipe.yaml") for line in done.stdout.splitlines()), done.output


@pytest.mark.parametrize(("code", "for_git"), [(0, 0), (1, 1), (2, 125), (3, 125)])
def test_git_bisect_skips_what_cannot_be_told(recipes: dict[int, str], code: int, for_git: int) -> None:
    assert run("--git-bisect", recipes[code]).exit_code == for_git


def test_git_bisect_skips_where_the_results_could_not_be_written(recipes: dict[int, str], tmp_path: Path) -> None:
    done = run("--git-bisect", recipes[0], "--junit", str(tmp_path / "no" / "x.xml"))
    assert done.exit_code == 125
    assert "cannot be written" in done.stderr


def test_a_crash_is_no_divergence_and_stops_no_other_recipe(recipes: dict[int, str], tmp_path: Path) -> None:
    calls = []

    def crashing(recipe: Path, **options: object) -> object:
        calls.append(recipe)
        if len(calls) == 1:
            raise ZeroDivisionError("in a kernel")
        return check(recipe, device="cpu")

    with patch("moeparity.check.recipes.check", crashing):
        done = run(recipes[0], recipes[0], "--junit", str(tmp_path / "x.xml"))
    assert done.exit_code == 70
    assert "Traceback" not in done.stderr
    assert "error: moeparity failed, which is a mistake of its own: ZeroDivisionError: in a kernel (" in done.stderr
    assert finding_lines(done, recipes[0]) == ["ok", "ok"]
    messages = [str(error.get("message")) for error in ET.parse(tmp_path / "x.xml").iter("error")]
    assert len(messages) == 1
    assert "ZeroDivisionError: in a kernel" in messages[0]


def test_workers_are_asked_as_of_a_bisection(recipes: dict[int, str]) -> None:
    """Their number is looked at where a bisection's is; `tests/bisection/workers` says what they compute."""
    done = run(recipes[0], "--workers", "0")
    assert done.exit_code == 2
    assert "--workers 0: expected a number of processes" in done.stderr


def test_junit_says_the_same(recipes: dict[int, str], tmp_path: Path) -> None:
    done = run(*recipes.values(), "--junit", str(tmp_path / "parity.xml"))
    root = ET.parse(tmp_path / "parity.xml").getroot()
    assert done.exit_code == 2
    counts = "2 met, 2 not met, 1 undecided, 1 recipe could not be checked"
    status = f"ERROR   4 recipes held to what they expect, {counts}; exit 2"
    assert [suite.get("name") for suite in root] == list(recipes.values())
    kinds = [[failure.get("type") for failure in suite.iter("failure")] for suite in root]
    assert kinds == [[], ["expectation", "expectation"], [], ["inconclusive"]]
    assert [len(list(suite.iter("error"))) for suite in root] == [0, 0, 1, 0]
    words = " ".join(done.stdout.split())
    assert words.startswith(" ".join(status.split()))
    assert words.endswith(" ".join(status.split()))


def test_markdown_goes_to_a_file_with_its_picture_or_alone_to_the_output(
    recipes: dict[int, str], tmp_path: Path
) -> None:
    done = run(recipes[1], "--markdown", str(tmp_path / "parity.md"))
    assert done.exit_code == 1
    text = (tmp_path / "parity.md").read_text("utf-8")
    assert text.startswith("### moeparity check: FAIL\n")
    assert "![Error after each layer](parity.svg)" in text
    assert ET.parse(tmp_path / "parity.svg").getroot().tag.endswith("svg")
    done = run(recipes[1], "--markdown", "-")
    assert done.stdout.startswith("### moeparity check: FAIL\n")
    assert "![" not in done.stdout
    assert "FAIL    1 recipe held" in done.stderr
    done = run(recipes[0], "--markdown", str(tmp_path / "a.svg"))
    assert done.exit_code == 2
    assert "--markdown and the picture of --markdown are both" in done.stderr


def test_a_misspelt_toggle_is_found_before_the_run(recipes: dict[int, str]) -> None:
    with patch("moeparity.bisection.pipeline.bisect", side_effect=AssertionError("it ran")):
        assert check(recipes[2]).exit_code == 2


def test_names_of_split_toggles_are_looked_at_after_the_run(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, expect="split: 1\nexpect: {culprits: [nobody]}\n")
    checked = check(recipe, device="cpu")
    assert checked.exit_code == 2
    assert checked.error is not None
    assert f"{recipe}:8: expect.culprits names 'nobody'" in checked.error


def test_the_recipe_of_the_document_loads(tmp_path: Path) -> None:
    (recipe,) = (text for text in blocks("yaml") if text.startswith("kind: recipe"))
    (tmp_path / "recipe.yaml").write_text(recipe)
    expect = reader.read_recipe(tmp_path / "recipe.yaml").expect
    assert expect.model_fields_set == type(expect).model_fields.keys()


@pytest.fixture
def shell(tmp_path: Path) -> dict[str, str]:
    """The variables of a shell in which `moeparity` forks a warm process."""
    return shell_with_moeparity(tmp_path)


def shell_with_moeparity(folder: Path) -> dict[str, str]:
    """The same, its command lying below a folder."""
    command = folder / "bin" / "moeparity"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {shlex.join(launcher())} "$@"\n')
    command.chmod(0o755)
    return {**ENVIRONMENT, "PATH": f"{command.parent}:{ENVIRONMENT['PATH']}"}


def git(folder: Path, shell: dict[str, str], *arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=folder, env=shell, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_git_bisect_run_names_the_commit(tmp_path: Path, shell: dict[str, str]) -> None:
    folder = tmp_path / "project"
    rules = {
        "v1.0": "rules: []\n",
        "comment": "rules: []  # nothing yet\n",
        "broken": "rules: [\n",
        "broken still": "rules: [[\n",
        "mended": "rules: []\n",
        "rounds the gate": "rules:\n  - {op: gate, set: {output: fp32}}\n",
        "more words": "rules:\n  - {op: gate, set: {output: fp32}, changed_by: none}\n",
    }
    write_recipe(folder / "recipes", candidate="./server.yaml")
    git(folder, shell, "init", "--quiet")
    for message, text in rules.items():
        (folder / "recipes" / "server.yaml").write_text(f"kind: profile\nname: server\nextends: hf-eager\n{text}")
        git(folder, shell, "add", ".")
        git(folder, shell, "commit", "--quiet", "--message", message)
        if message == "v1.0":
            git(folder, shell, "tag", message)
    session = next(text for text in blocks("") if text.startswith("git bisect start"))
    for line in session.splitlines():
        output = git(folder, shell, *line.split()[1:])
    assert "is the first bad commit" in output
    assert git(folder, shell, "log", "-1", "--format=%s", "refs/bisect/bad").strip() == "rounds the gate"
    assert "git bisect skip" in git(folder, shell, "bisect", "log")
