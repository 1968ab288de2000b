"""The README's commands run, its files load, and its session is what the command prints."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import yaml

from moeparity.spec import files

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")
SESSION = re.compile(r"<!-- session: moeparity (.*?) -->\n```\n(.*?)```", re.DOTALL)


def blocks(language: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
    return [text for tag, text in found if tag == language]


def run(arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "moeparity.cli", *arguments.split()]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, env=environment)


def skeleton(text: str) -> list[str]:
    """The first cell of every line without its numbers: effects, digits and the machine vary from host to host."""
    found, section = [], ""
    for line in text.splitlines():
        section = line if line and not line.startswith(" ") else section
        told = section not in {"In words", "Cost"} and not line.startswith("machine") and not line.startswith("  - ")
        if told or line == section:
            found.append(re.sub(r"[-+]?\d[\d.,e+%-]*", "#", re.split(r"\s{2,}", line.strip())[0]))
    return found


def test_session_is_what_the_command_prints() -> None:
    found = SESSION.search(README)
    assert found is not None
    done = run(f"{found[1]} --device cpu")
    assert done.returncode == 1, done.stderr
    assert skeleton(done.stdout) == skeleton(found[2])
    assert {"Floor", "Toggles", "In words", "Cost", "op combine:accumulate"} <= set(skeleton(done.stdout))


def test_install_and_test_commands_are_the_documented_ones() -> None:
    commands = [line for block in blocks("") for line in block.splitlines()]
    assert "pip install -e . && moeparity bisect recipes/quickstart.yaml" in commands
    assert "pip install -e '.[test]' && pytest" in commands
    ci = (ROOT / ".ci" / "run").read_text()
    assert "pip install -e '.[test]' && pytest" in ci


def test_yaml_of_the_readme_loads(tmp_path: Path) -> None:
    recipe, profile, impl = blocks("yaml")
    assert yaml.safe_load(recipe)["kind"] == "recipe"
    (tmp_path / "recipe.yaml").write_text(recipe)
    (tmp_path / "my-server.yaml").write_text(profile)
    assert files.read_recipe(tmp_path / "recipe.yaml").gate.metric == "k3"
    assert files.read_profile(tmp_path / "my-server.yaml").name == "my-server"
    candidate = re.sub(r"^candidate:.*?^(?=gate)", impl, recipe, flags=re.DOTALL | re.MULTILINE)
    (tmp_path / "impl.yaml").write_text(candidate)
    assert files.read_recipe(tmp_path / "impl.yaml").candidate.impl[0].call == "my_kernels:moe"


def test_readme_profile_binds(tmp_path: Path) -> None:
    (tmp_path / "my-server.yaml").write_text(blocks("yaml")[1])
    done = run(f"show {ROOT / 'checkpoints/quickstart'} --profile {tmp_path}/my-server.yaml")
    assert done.returncode == 0, done.stderr
    assert "my-server.yaml:" in done.stdout


def test_python_of_the_readme_runs() -> None:
    (code,) = blocks("python")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["fail", "layers[0].attention.attend"]


def test_every_command_in_the_table_exists() -> None:
    for name in dict.fromkeys(re.findall(r"`moeparity (\w+)", README)):
        assert run(f"{name} --help").returncode == 0, name


def test_links_and_files_named_exist() -> None:
    for name in re.findall(r"`([\w./-]+\.(?:md|yaml))`", README):
        assert (ROOT / name).exists(), name
