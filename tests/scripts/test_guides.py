"""Guides and gallery: every command shown is one that the CLI takes; what only plans prints what is shown."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer.core
import typer.main

from moeparity.cli.commands import app
from scripts.pages.page import BLOCK, ROOT
from scripts.pages.paths import WIDTH, command, excerpt, prepared
from scripts.pages.registry import GUIDES, PATHS
from tests.command import inside

GROUP = typer.main.get_command(app)
assert isinstance(GROUP, typer.core.TyperGroup)
COMMANDS = GROUP.commands
TEXTS = {name: page.file.read_text("utf-8") for name, page in PATHS.items()}
SHOWN = [
    pytest.param(name, block[2], block[3], id=f"{name}-{index}")
    for name, text in TEXTS.items()
    for index, block in enumerate(BLOCK.finditer(text))
    if block[2] != "machine"
]
INLINE = sorted(
    {span for page in [*TEXTS.values(), (ROOT / "README.md").read_text("utf-8")]
     for span in re.findall(r"`(moeparity [^`\n]+)`", page)}
)  # fmt: skip


def parsed(words: list[str]) -> dict[str, Any]:
    """The arguments of a command as the CLI takes them; raises where it does not."""
    assert words[0] == "moeparity"
    command_named, behind = command_of(words[1:])
    return command_named.make_context(words[1], behind).params


def command_of(words: list[str]) -> tuple[Any, list[str]]:
    """The command that is named, in a group the one of the group, and the words behind its name. Raises KeyError."""
    command_named: Any = COMMANDS[words[0]]
    behind = words[1:]
    while isinstance(command_named, typer.core.TyperGroup) and behind and not behind[0].startswith("-"):
        command_named, behind = command_named.commands[behind[0]], behind[1:]
    return command_named, behind


@pytest.mark.parametrize(("page", "name", "block"), SHOWN)
def test_the_cli_takes_it_and_output_was_written(page: str, name: str, block: str) -> None:
    words = shlex.split(command(block))
    assert len(block.splitlines()) > 4, f"run `python -m scripts.pages {page}`"
    if words[0] == "cat":
        return
    arguments = parsed(words)
    for file_name in (arguments.get("recipe"), *(arguments.get("files") or ())):
        place = str(file_name or "")
        assert not place.startswith("recipes/") or (ROOT / place).exists()


def test_what_is_not_taken_is_seen() -> None:
    with pytest.raises(Exception, match="--sektion"):
        parsed(["moeparity", "bisect", "recipe.yaml", "--sektion", "floor"])
    with pytest.raises(KeyError):
        parsed(["moeparity", "bisekt", "recipe.yaml"])
    with pytest.raises(KeyError):
        parsed(["moeparity", "show", "plans", "recipe.yaml"])
    with pytest.raises(Exception, match="--mermaids"):
        parsed(["moeparity", "show", "plan", "recipe.yaml", "--mermaids"])


@pytest.mark.parametrize("span", INLINE)
def test_a_command_in_a_sentence_is_one(span: str) -> None:
    # Behind `--` stands another program's command.
    words = shlex.split(span.partition(" -- ")[0])[1:]
    # `COMMAND` is any, and `--help` is what they all have.
    any_of_them = words[0] in {"COMMAND", "--help"}
    options = set() if any_of_them else {name for of in command_of(words)[0].params for name in of.opts}
    assert {word for word in words if word.startswith("--")} <= {*options, "--help"}


def test_a_guide_is_three_to_six_commands_and_says_its_limits() -> None:
    assert {path.stem for path in (ROOT / "docs" / "guides").glob("*.md")} == {*GUIDES, "index"}
    index = (ROOT / "docs" / "guides" / "index.md").read_text("utf-8")
    for name in GUIDES:
        text = TEXTS[f"guide-{name}"]
        runs = [block for block in BLOCK.finditer(text) if "$ moeparity" in block[3]]
        assert 3 <= len(runs) <= 6, name
        assert f"({name}.md)" in index
        # Where it was made and when; that it ends with what it cannot say, or what to conclude.
        assert re.search(r"torch [\w.+]+, 1 thread, \d{4}-\d\d-\d\d\.", text), name
        assert "## What to conclude" in text or "## What it cannot say" in text, name


def words_of(lines: list[str]) -> list[str]:
    """Without numbers and paths, which are another machine's."""
    return re.findall(r"[A-Za-z]{3,}", re.sub(r"\S*/\S*", " ", " ".join(lines)))


def test_what_plans_only_prints_what_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    folder = prepared(tmp_path, GUIDES["flags"])
    ran = 0
    for block in BLOCK.finditer(TEXTS["guide-flags"]):
        words = shlex.split(command(block[3])) if "$ " in block[3] else [""]
        if words[:2] in (["moeparity", "init"], ["moeparity", "show"]):
            done = inside(*words[1:], cwd=folder)
            assert done.returncode == 0, done.stderr
            lines = [line.rstrip() for line in done.stdout.splitlines()]
            shown = block[3].strip().strip("`").strip().splitlines()[1:]
            assert words_of(excerpt(block[2], "\n".join(lines))) == words_of(shown)
            ran += 1
    assert ran == 3
