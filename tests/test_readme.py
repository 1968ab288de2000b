"""The commands of the README run; the files and the Python of docs/recipe.md, which it leads to, load and run."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import shutil
from pathlib import Path

import yaml
from safetensors.torch import load_file, save_file

from moeparity.plan.spec import reader
from tests.command import ROOT, inside

README = (ROOT / "README.md").read_text("utf-8")
RECIPE = (ROOT / "docs" / "recipe.md").read_text("utf-8")


def blocks(language: str, page: str = RECIPE) -> list[str]:
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    return [text for tag, text in fenced if tag == language]


def test_install_and_test_commands_are_the_documented_ones() -> None:
    commands = [line for block in blocks("", README) for line in block.splitlines()]
    assert "pip install -e . && moeparity bisect recipes/quickstart.yaml" in commands
    assert "pip install -e '.[test]' && pytest" in commands
    ci = (ROOT / ".ci" / "run").read_text()
    assert "pip install -e '.[test]' && pytest" in ci


def test_yaml_of_the_page_on_recipes_loads(tmp_path: Path) -> None:
    recipe, profile, ranks, gpus, impl, own_log_probs, faults = blocks("yaml")
    assert yaml.safe_load(recipe)["kind"] == "recipe"
    (tmp_path / "recipe.yaml").write_text(recipe)
    (tmp_path / "my-server.yaml").write_text(profile)
    assert reader.read_recipe(tmp_path / "recipe.yaml").gate.metric == "k3"
    assert reader.read_profile(tmp_path / "my-server.yaml").name == "my-server"
    placed = re.sub(r"^reference:.*?^(?=gate)", ranks, recipe, flags=re.DOTALL | re.MULTILINE)
    (tmp_path / "ranks.yaml").write_text(placed)
    assert str(reader.read_recipe(tmp_path / "ranks.yaml").candidate.placement) == "tensor 4, expert 4"
    (tmp_path / "gpus.yaml").write_text(
        re.sub(r"^reference:.*?^(?=gate)", gpus, recipe, flags=re.DOTALL | re.MULTILINE)
    )
    sides = reader.read_recipe(tmp_path / "gpus.yaml")
    assert (sides.reference.gpu, sides.candidate.gpu) == ("a100", "h100")
    candidate = re.sub(r"^candidate:.*?^(?=gate)", impl, recipe, flags=re.DOTALL | re.MULTILINE)
    (tmp_path / "impl.yaml").write_text(candidate)
    assert reader.read_recipe(tmp_path / "impl.yaml").candidate.impl[0].call == "my_kernels:moe"
    (tmp_path / "log_probs.yaml").write_text(
        re.sub(r"^candidate:.*?^(?=gate)", own_log_probs, recipe, flags=re.DOTALL | re.MULTILINE)
    )
    assert reader.read_recipe(tmp_path / "log_probs.yaml").candidate.impl[0].nodes == "log_probs"
    (tmp_path / "faults.yaml").write_text(
        re.sub(r"^candidate:.*?^(?=gate)", faults, recipe, flags=re.DOTALL | re.MULTILINE)
    )
    stated = reader.read_recipe(tmp_path / "faults.yaml").candidate.faults
    assert [fault.name for fault in stated] == ["gate-and-up-exchanged", "norm-eps"]


def test_the_profile_of_the_page_on_recipes_binds(tmp_path: Path) -> None:
    (tmp_path / "my-server.yaml").write_text(blocks("yaml")[1])
    done = inside("show", "plan", ROOT / "checkpoints/quickstart", "--profile", tmp_path / "my-server.yaml")
    assert done.returncode == 0, done.stderr
    # A long path is folded.
    assert "my-server.yaml:" in "".join(done.stdout.split())


def test_python_of_the_page_on_recipes_runs(tmp_path: Path) -> None:
    """On the first sequences of the quickstart: tests/test_recipes.py runs the whole."""
    (code,) = blocks("python")
    (tmp_path / "recipes").mkdir()
    (tmp_path / "checkpoints").symlink_to(ROOT / "checkpoints")
    shutil.copy(ROOT / "recipes" / "rounding.yaml", tmp_path / "recipes")
    tokens = load_file(ROOT / "recipes" / "rounding.safetensors")
    first = {name: tensor[:16].contiguous() for name, tensor in tokens.items()}
    save_file(first, tmp_path / "recipes" / "rounding.safetensors")
    printed = io.StringIO()
    with contextlib.chdir(tmp_path), contextlib.redirect_stdout(printed):
        exec(code, {})  # noqa: S102
    assert printed.getvalue().split() == ["fail", "layers[0].attention.attend"]


def test_the_commands_for_logs_run(tmp_path: Path) -> None:
    logs = ROOT / "tests" / "logs" / "fixtures"
    shutil.copytree(logs / "nemo-rl", tmp_path / "results")
    shutil.copy(logs / "sglang" / "generate.jsonl", tmp_path / "sampled.jsonl")
    shutil.copy(logs / "sglang" / "scored.jsonl", tmp_path / "scored.jsonl")
    commands = [
        shlex.split(line)
        for block in blocks("", README)
        for line in block.splitlines()
        if line.startswith("moeparity metrics ")
    ]
    assert len(commands) == 2
    first, second = (inside(*_globbed(command[1:], tmp_path), cwd=tmp_path) for command in commands)
    assert first.returncode == 3, "three sequences decide nothing"
    assert "nemo-rl/gen_kl_error" in first.stdout
    assert second.returncode == 0, second.stderr
    assert "position" in second.stdout


def _globbed(arguments: list[str], folder: Path) -> list[str]:
    """What a shell makes of `*`."""
    return [name for arg in arguments for name in ([str(p) for p in folder.glob(arg)] if "*" in arg else [arg])]


def test_every_command_in_the_table_exists() -> None:
    """`COMMAND` stands for any of them."""
    names = dict.fromkeys(re.findall(r"`moeparity ((?:show|kernel|runs) \w+|[a-z]\w*)", README + RECIPE))
    assert {"bisect", "show engines"} <= names.keys()
    for name in names:
        assert inside(*name.split(), "--help").returncode == 0, name


def test_it_is_short_and_leads_to_the_glossary() -> None:
    assert len(README.splitlines()) <= 180
    assert "docs/glossary.md" in README
    assert "docs/recipe.md" in README
