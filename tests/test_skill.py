"""The page for coding agents: its commands are those of the program, and its keys are those of the schemas."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any, get_args

import pytest
from typer.main import get_command

from moeparity.cli.commands import app
from moeparity.cli.schemas import report_schema
from moeparity.doctor.report import Answer

ROOT = Path(__file__).parents[1]
TEXT = files("moeparity").joinpath("SKILL.md").read_text("utf-8")
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in TEXT.splitlines() if line.startswith("| ")][
    1:
]


def options_of(words: list[str]) -> tuple[set[str], list[str]]:
    """The options of the command that words begin with, and the words behind its name. Raises KeyError."""
    command: Any = get_command(app)
    while hasattr(command, "commands"):
        command, words = command.commands[words[0]], words[1:]
    return {name for parameter in command.params for name in parameter.opts}, words


def properties(schema: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    """The keys of an object, of the items of an array, or of whichever of several shapes has any."""
    if "$ref" in schema:
        return properties(document["$defs"][schema["$ref"].rpartition("/")[2]], document)
    if "items" in schema:
        return properties(schema["items"], document)
    for shape in schema.get("anyOf", ()):
        if keys := properties(shape, document):
            return keys
    return dict(schema.get("properties", {}))


def keys_of(cell: str) -> Iterator[list[str]]:
    return (key.split(".") for key in re.findall(r"`([a-z_.]+)`", cell))


def test_it_is_in_the_package_and_in_the_docs() -> None:
    assert (ROOT / "docs" / "skill.md").read_text("utf-8") == TEXT
    assert re.match(r"---\nname: [a-z-]+\ndescription: .{20,1024}\n---\n", TEXT)
    assert len(ROWS) >= 8


@pytest.mark.parametrize("command", re.findall(r"`moeparity ([^`]+)`", TEXT))
def test_every_command_exists_with_its_options(command: str) -> None:
    options, words = options_of(shlex.split(command.partition(" -- ")[0]))
    assert {word for word in words if word.startswith("--")} <= options


@pytest.mark.parametrize(("command", "schema", "cell"), [row[1:] for row in ROWS if row[2] != "-"])
def test_every_key_is_in_the_schema_of_what_its_command_writes(command: str, schema: str, cell: str) -> None:
    document = report_schema(schema.strip("`"))
    keys = [*keys_of(cell)]
    assert keys
    for path in keys:
        at = document
        for key in path:
            at = properties(at, document)[key]
    assert "--json" in command


def test_what_is_said_of_the_examination_is_so() -> None:
    section = TEXT.partition("## How to read the doctor's JSON")[2].partition("\n## ")[0]
    answers, rest = section.split("Only the first three", 1)
    assert set(re.findall(r"`([a-z ]+)`", answers)) - {"answer"} == set(get_args(Answer))
    document = report_schema("examination")
    fields = set(document["properties"]) | {key for d in document["$defs"].values() for key in d.get("properties", {})}
    words = {word.rpartition(".")[2] for word in re.findall(r"`([a-z_.]+)`", rest)}
    assert words - set(get_args(Answer)) - {"sampler", "trainer"} <= fields
