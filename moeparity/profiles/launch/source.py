"""Reads what was written: a YAML or JSON mapping, or a command line in a text file, as options with their places."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from moeparity import paths
from moeparity.errors import SpecError, Where, shown
from moeparity.plan.spec import yaml

MAPPINGS = (".yaml", ".yml", ".json")
_VARIABLE = re.compile(r"([A-Z][A-Z0-9_]*)=(.*)", re.DOTALL)
_NESTED = re.compile(r"\+{0,2}([a-z_][\w.]*)=(.*)", re.DOTALL)
SHORT = {"-tp": "tp", "-O": "O", "-ep": "ep"}
"""Short options that concern numerics."""
TRUE, FALSE = ("1", "true", "True"), ("0", "false", "False")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One option as it was written: `value` is None for a bare flag."""

    name: str
    value: Any
    where: Where


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Everything a file gives: options, environment variables, and the words of its command (none for a mapping)."""

    path: Path
    options: tuple[Entry, ...]
    environment: tuple[Entry, ...] = ()
    command: tuple[str, ...] = field(default=())


def read_source(path: Path) -> Source:
    """The options in a file. Raises SpecError."""
    if not paths.present(path):
        raise SpecError(
            f"{Where(path)}: there is no such file. Give a launch configuration (YAML, JSON) or a command line."
        )
    if path.suffix in MAPPINGS:
        return Source(path=path, options=tuple(_flat(_mapping(path), Where(path))))
    return _command(path)


def _mapping(path: Path) -> Mapping[str, Any]:
    if path.suffix != ".json":
        return yaml.load(path)
    try:
        options = json.loads(_text(path))
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", None)
        raise SpecError(f"{Where(path, line)}: is no JSON: {error}. Correct it.") from None
    if not isinstance(options, dict):
        raise SpecError(f"{Where(path)}: holds {shown(options)}; expected a mapping of options.")
    return options


def _text(path: Path) -> str:
    try:
        return paths.contents(path, "launch configuration").decode("utf-8")
    except UnicodeDecodeError:
        raise SpecError(f"{Where(path)}: is no text. Give a file that holds the command line.") from None
    except OSError as error:
        raise SpecError(f"{Where(path)}: cannot be read: {error.strerror}. Give a launch configuration.") from None


def _flat(mapping: Mapping[str, Any], where: Where, prefix: str = "") -> Iterator[Entry]:
    """Nested keys, joined by dots; a mapping is told whole and key by key."""
    lines = getattr(mapping, "key_lines", {})
    for key, value in mapping.items():
        at = Where(where.path, lines.get(key, where.line))
        name = f"{prefix}{str(key).replace('-', '_')}"
        yield Entry(name=name, value=value, where=at)
        if isinstance(value, Mapping):
            yield from _flat(value, at, f"{name}.")


def _command(path: Path) -> Source:
    """A command line, which may go over several lines, with variables set before it."""
    words = list(_words(path))
    environment: list[Entry] = []
    options: list[Entry] = []
    command: list[str] = []
    while words:
        word, at = words.pop(0)
        variable = _VARIABLE.fullmatch(word)
        if word == "export" or (variable and not command):
            if variable:
                environment.append(Entry(name=variable[1], value=variable[2], where=at))
        elif word == "-m" and words:
            command.append(words.pop(0)[0])
        elif word.startswith("-") and len(word) > 1:
            options.append(_option(word, at, words))
        elif nested := _NESTED.fullmatch(word):
            options.append(Entry(name=nested[1], value=nested[2], where=at))
        else:
            command.append(word)
    return Source(path=path, options=tuple(options), environment=tuple(environment), command=tuple(command))


def _option(word: str, at: Where, words: list[tuple[str, Where]]) -> Entry:
    """`--name`, `--name=value` or `--name value`, of which the words after it are read."""
    name, equals, value = word.lstrip("-").partition("=")
    if not word.startswith("--"):
        attached = re.fullmatch(r"-O(\d)", word)
        if attached:
            return Entry(name="O", value=attached[1], where=at)
        name = SHORT.get(f"-{name}", name)
    name = name.replace("-", "_")
    if equals:
        return Entry(name=name, value=value, where=at)
    if words and not words[0][0].startswith("--") and not re.fullmatch(r"-[A-Za-z]\w*", words[0][0]):
        return Entry(name=name, value=words.pop(0)[0], where=at)
    return Entry(name=name, value=None, where=at)


def _words(path: Path) -> Iterator[tuple[str, Where]]:
    """The words of a shell script with their lines; comments and line ends are left out."""
    lines = _text(path).splitlines()
    for number, line in enumerate(lines, 1):
        at = Where(path, number)
        try:
            words = shlex.split(line.rstrip().removesuffix("\\"), comments=True)
        except ValueError as error:
            raise SpecError(f"{at}: {shown(line.strip())} is no command line: {error}. Close the quotation.") from None
        yield from ((word, at) for word in words)
