"""Every word that a user can choose, mistyped by one letter, is answered with the nearest that there is.

The words are not listed here: they are walked in the recipe's schema, the command line's choices, the ops and the
registries. A word of three letters or less has no nearest.
"""

from __future__ import annotations

import ast
import copy
import enum
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
import typer.main
from pydantic import ValidationError

from moeparity.bisection.sections import ON_REQUEST, asked_for
from moeparity.cli.commands import app
from moeparity.documents.checked import complaint as complaint_of
from moeparity.documents.checked import shipped
from moeparity.errors import MoeparityError, Where
from moeparity.logs.request import MetricsRequest
from moeparity.metrics.declaration import By
from moeparity.metrics.registry import METRICS, SETS, find, of_sets
from moeparity.numerics.collectives import registry as collectives
from moeparity.ops.registry import OPS
from moeparity.plan.address import select, split
from moeparity.plan.engine_profile import check_value, load_profile
from moeparity.plan.schedule.steps import PHASES
from moeparity.plan.spec.recipe_schema import RecipeFile
from tests.command import ROOT, inside

SHORTEST = 4
HERE = Where(Path("recipe.yaml"), 1)
RECIPE: dict[str, Any] = {
    "kind": "recipe",
    "checkpoint": "checkpoint",
    "tokens": {"file": "tokens.jsonl", "sampled_from": "candidate"},
    "reference": {"profile": "hf-eager"},
    "candidate": {"profile": "vllm"},
    "gate": {"metric": "k3", "below": 1.0},
}
BESIDE: dict[str, Any] = {
    "sample": {"from": "candidate", "new_tokens": 1},
    "decode": {"from": 1},
    "pack": {"length": 8},
    "gate": {"metric": "k3", "below": 1.0},
}
"""What a key needs beside the one that is mistyped."""


def mistyped(word: str, names_there: Sequence[str]) -> str:
    """The word with its middle letter left out, or another one in its place where that is a word, too."""
    at = len(word) // 2
    shorter = word[:at] + word[at + 1 :]
    return shorter if shorter not in names_there else f"{word[:at]}q{word[at + 1 :]}"


def words(names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The words that are long enough, each with a mistake in it."""
    for name in names:
        if len(name) >= SHORTEST:
            yield name, mistyped(name, names)


def enumerations(
    schema: Mapping[str, Any], node: Mapping[str, Any], path: list[Any]
) -> Iterator[tuple[list[Any], Any]]:
    """Every key whose value is one of several words, by its path in the file."""
    if "$ref" in node:
        yield from enumerations(schema, schema["$defs"][node["$ref"].rpartition("/")[2]], path)
    words_here = node.get("enum", [node["const"]] if "const" in node else [])
    if words_here:
        yield path, words_here
    for branch in (*node.get("anyOf", ()), *node.get("oneOf", ()), *node.get("allOf", ())):
        yield from enumerations(schema, branch, path)
    for key, value in node.get("properties", {}).items():
        yield from enumerations(schema, value, [*path, key])
    for key, inner in (("additionalProperties", "name"), ("items", 0)):
        if isinstance(node.get(key), dict):
            yield from enumerations(schema, node[key], [*path, inner])


def recipe_with(path: list[Any], value: str) -> dict[str, Any]:
    data = copy.deepcopy(RECIPE)
    if "sample" in path:
        del data["tokens"]["sampled_from"]
    node: Any = data
    for key, following in itertools.pairwise(path):
        beside = copy.deepcopy(BESIDE.get(key, {}))
        if following == 0:
            node[key] = [beside]
        elif isinstance(node, dict):
            node.setdefault(key, beside)
        node = node[key]
    node[path[-1]] = value
    return data


def test_every_word_of_a_recipe() -> None:
    schema = RecipeFile.model_json_schema(by_alias=True)
    paths = 0
    for path, names_there in enumerations(schema, schema, []):
        paths += 1
        for word, wrong in words(names_there):
            data = recipe_with(path, wrong)
            with pytest.raises(ValidationError) as refused:
                RecipeFile.model_validate(data)
            _, says = complaint_of(data, RecipeFile, refused.value)
            assert "Did you mean " in says, (path, word, says)
    assert paths > 25


@pytest.mark.parametrize(
    ("wrong", "meant"), [("synthetc(0)", "synthetic(0)"), ("fils", "files"), ("synthetic", "synt")]
)
def test_weights(wrong: str, meant: str) -> None:
    data = {**RECIPE, "weights": wrong}
    with pytest.raises(ValidationError) as refused:
        RecipeFile.model_validate(data)
    assert f"Did you mean '{meant}" in complaint_of(data, RecipeFile, refused.value)[1]


def commands() -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command and group of the command line, by its words; groups before what is in them."""
    waiting: list[tuple[tuple[str, ...], Any]] = [((), typer.main.get_command(app))]
    while waiting:
        path, command = waiting.pop(0)
        yield path, command
        waiting += [((*path, name), member) for name, member in getattr(command, "commands", {}).items()]


def choices() -> Iterator[tuple[tuple[str, ...], str, str]]:
    """Every choice of the command line: command, option or argument, word."""
    for path, command in commands():
        for parameter in command.params if path else ():
            for annotation in (parameter.type_descriptor.annotation, *get_args(parameter.type_descriptor.annotation)):
                if get_origin(annotation) is Literal:
                    yield from ((path, parameter.opts[0], str(word)) for word in get_args(annotation))
                elif isinstance(annotation, type) and issubclass(annotation, enum.Enum):
                    yield from ((path, parameter.opts[0], str(word.value)) for word in annotation)


SCHEMA = ("show", "schema")


def test_every_choice_of_the_command_line() -> None:
    choices_there = list(choices())
    expected = {(("bisect",), "--by", "node"), (("metrics",), "--join", "order"), (SCHEMA, "kind", "recipe")}
    assert expected <= set(choices_there)
    for command, option, word in choices_there:
        if len(word) >= SHORTEST:
            wrong = mistyped(word, [choice for _, _, choice in choices_there])
            arguments = [option, wrong] if option.startswith("-") else [wrong]
            done = inside(*command, *arguments, *["x"] * (command != SCHEMA))
            assert done.returncode == 2
            assert "Did you mean '" in done.stderr.replace("\n", " "), (command, option, done.stderr)


def test_every_command() -> None:
    groups = [(path, command) for path, command in commands() if getattr(command, "commands", {})]
    assert {("show",), ("runs",), ("kernel",)} < {path for path, _ in groups}
    for path, group in groups:
        for word, wrong in words(list(group.commands)):
            assert f"Did you mean '{word}'" in inside(*path, wrong).stderr


def test_every_attribute_and_value_of_every_op() -> None:
    for op in OPS.values():
        names = [attribute.name for attribute in op.attributes]
        for _, wrong in words(names):
            assert "Did you mean " in complaint(partial(check_value, op, wrong, "fp32", HERE))
        for attribute in op.attributes:
            for _, wrong in words([value for value in attribute.values if value.isidentifier()]):
                says = complaint(partial(check_value, op, attribute.name, wrong, HERE))
                assert "Did you mean " in says, says


NODES = ("layers[0].attention.attend", "layers[0].moe.gate", "layers[1].moe.gate", "lm_head")
REGISTRIES: dict[str, tuple[Sequence[str], Callable[[str], object]]] = {
    "sections": (tuple(ON_REQUEST), lambda word: asked_for([word], all_of_them=False)),
    "metrics": (tuple(METRICS), lambda word: find(word, "metrics")),
    "sets": (tuple(SETS), lambda word: of_sets([word])),
    "groups of tokens": (get_args(By), lambda word: MetricsRequest(by=[word]).ways()),
    "phases": (PHASES, lambda word: split(f"lm_head:output@{word}", HERE)),
    "nodes": (NODES, lambda word: select(word, NODES, 2, HERE)),
    "collectives": (tuple(collectives.COLLECTIVES), lambda word: collectives.find(word, None)),  # type: ignore[arg-type]
    "profiles": (tuple(shipped("profiles")), lambda word: load_profile(word, HERE)),
}


def complaint(does: Callable[[], object]) -> str:
    with pytest.raises((MoeparityError, ValueError)) as refused:
        does()
    return str(refused.value)


@pytest.mark.parametrize("name", REGISTRIES)
def test_every_name_of_a_registry(name: str) -> None:
    names_there, find_it = REGISTRIES[name]
    for word, wrong in words(names_there):
        says = complaint(partial(find_it, wrong))
        assert "Did you mean " in says, (word, says)


TOLD = ("did_you_mean", "near", "hint")
NOT_TYPED = {"_check_entry", "one_of"}
"""What no user types: dtypes in a checkpoint's file, modifiers of PTX."""


def test_whatever_expects_one_of_several_names_the_nearest() -> None:
    """Every function that says `expected one of`."""
    for file in (*(ROOT / "moeparity").rglob("*.py"), *(ROOT / "cli").glob("*.py")):
        text = file.read_text("utf-8")
        for function in ast.walk(ast.parse(text)) if "expected one of " in text else ():
            if isinstance(function, ast.FunctionDef) and function.name not in NOT_TYPED:
                docstring = ast.get_docstring(function, clean=False)
                texts = [
                    n.value for n in ast.walk(function) if isinstance(n, ast.Constant) and isinstance(n.value, str)
                ]
                if any(value.endswith("expected one of ") and value != docstring for value in texts):
                    source = ast.get_source_segment(text, function) or ""
                    assert any(word in source for word in TOLD), (file.name, function.name)
