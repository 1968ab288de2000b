"""Containers and services described in files: docker-compose, kubernetes manifests, systemd units."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from moeparity.errors import SpecError, Where
from moeparity.profiles.launch.reading.launchers import Started, contained, started
from moeparity.profiles.launch.reading.shell.interpret import interpreted
from moeparity.profiles.launch.reading.shell_words import Command, Word, is_known, unresolved
from moeparity.profiles.launch.source import Note

_VARIABLE = re.compile(r"\$\$|\$\{(\w+)(:?-([^{}]*))?\}|\$(\w+)")
_DEEPEST = 30


def is_manifest(document: Mapping[str, Any]) -> bool:
    """Whether a mapping describes containers, not options."""
    return ("apiVersion" in document and "kind" in document) or _services(document) is not None


def _services(document: Mapping[str, Any]) -> Mapping[str, Any] | None:
    services = document.get("services")
    if not isinstance(services, dict) or not all(isinstance(service, dict) for service in services.values()):
        return None
    known_keys = ("image", "command", "build", "entrypoint")
    return services if any(key in service for service in services.values() for key in known_keys) else None


def of_manifest(document: Mapping[str, Any], path: Path, notes: list[Note]) -> Iterator[Started]:
    """The programs that compose's services, or a manifest's containers, start."""
    services = _services(document)
    if services is not None:
        for service in services.values():
            yield from _compose(service, path, notes)
        return
    for container in _containers(document, 0):
        yield from _kubernetes(container, path, notes)


def _containers(node: Any, depth: int) -> Iterator[Mapping[str, Any]]:
    if depth > _DEEPEST:
        return
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, child in children:
        if key == "containers" and isinstance(child, list):
            yield from (container for container in child if isinstance(container, dict))
        else:
            yield from _containers(child, depth + 1)


def _at(node: Mapping[str, Any], key: str, path: Path) -> Where:
    return Where(path, getattr(node, "key_lines", {}).get(key, getattr(node, "line", None)))


def _kubernetes(container: Mapping[str, Any], path: Path, notes: list[Note]) -> Iterator[Started]:
    """`$(NAME)` in arguments stands for a variable of the container."""
    where = _at(container, "args" if "args" in container else "command", path)
    variables: dict[str, Word] = {}
    for item in container.get("env") or ():
        if isinstance(item, dict) and "name" in item:
            at = _at(item, "name", path)
            text = str(item["value"]) if "value" in item else unresolved(f"{item['name']} from elsewhere")
            variables[str(item["name"])] = Word(text, at)
    if "envFrom" in container:
        says = "`envFrom` is not read: the variables that it sets are not known"
        notes.append(Note(says=says, where=where, opens="environment"))

    def expanded(items: Any) -> list[Word]:
        return [Word(_of_kubernetes(_text(item), variables), where) for item in _listed(items)]

    command = Command(tuple(expanded(container.get("args"))), tuple(variables.items()), where)
    yield from contained(str(container.get("image", "")), expanded(container.get("command")), command, notes)


def _of_kubernetes(text: str, variables: Mapping[str, Word]) -> str:
    def value(match: re.Match[str]) -> str:
        word = variables.get(match[1])
        return unresolved(match[0]) if word is None else word.text

    return re.sub(r"\$\(([A-Za-z_]\w*)\)", value, text)


def _listed(items: Any) -> Sequence[Any]:
    return items if isinstance(items, list) else () if items is None else (items,)


def _text(item: Any) -> str:
    return str(item).lower() if isinstance(item, bool) else str(item)


def _compose(service: Mapping[str, Any], path: Path, notes: list[Note]) -> Iterator[Started]:
    """A string is split as a shell does; `${X:-default}` is compose's own."""
    variables = service.get("environment") or {}
    pairs = (
        variables.items()
        if isinstance(variables, dict)
        else [
            (name, value if equals else None) for name, equals, value in (_halves(item) for item in _listed(variables))
        ]
    )
    at = _at(service, "environment", path)
    # Of a variable without a value compose hands on what its own environment has.
    environment = [
        (str(name), Word(unresolved(f"${name}") if value is None else _of_compose(_text(value)), at))
        for name, value in pairs
    ]
    if "env_file" in service:
        says = "`env_file` is not read: the variables that it sets are not known"
        notes.append(Note(says=says, where=at, opens="environment"))
    where = _at(service, "command", path)
    command = Command(_split(service.get("command"), where), tuple(environment), where)
    entrypoint = _split(service.get("entrypoint"), _at(service, "entrypoint", path))
    yield from contained(_of_compose(str(service.get("image", ""))), entrypoint, command, notes)


def _halves(item: Any) -> tuple[str, str, str]:
    return str(item).partition("=")


def _split(command: Any, where: Where) -> tuple[Word, ...]:
    if isinstance(command, list):
        return tuple(Word(_of_compose(_text(item)), where) for item in command)
    return tuple(Word(_of_compose(word), where) for word in _shell_words(str(command or ""), where))


def _shell_words(text: str, where: Where) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise SpecError(f"{where}: {text[:60]!r} is no command line: {error}. Close the quotation.") from None


def _of_compose(text: str) -> str:
    def value(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        return match[3] if match[2] else unresolved(match[0])

    return _VARIABLE.sub(value, text)


def of_unit(text: str, path: Path, notes: list[Note]) -> Iterator[Started]:
    """What a systemd unit starts: `ExecStart`, with the variables of `Environment`."""
    environment: dict[str, Word] = {}
    starts: list[tuple[str, Where]] = []
    for number, line in _joined_lines(text):
        key, _, value = line.partition("=")
        where = Where(path, number)
        if key.strip() == "Environment":
            pairs = (word.partition("=") for word in _shell_words(value, where))
            environment |= {name: Word(_specifiers(text), where) for name, _, text in pairs}
        elif key.strip() == "EnvironmentFile":
            says = f"`{line.strip()}` is not read: what it sets is not known"
            notes.append(Note(says=says, where=where, opens="environment"))
        elif key.strip() == "ExecStart" and value.strip():
            starts.append((value.strip().lstrip("-@:+!"), where))
    for text_of_start, where in starts:
        words = [_of_unit(word, environment) for word in _shell_words(text_of_start, where)]
        command = Command(tuple(Word(word, where) for word in words), tuple(environment.items()), where)
        if words and words[0].rpartition("/")[2] in ("bash", "sh") and all(map(is_known, words)):
            scope = interpreted(shlex.join(words), path, where.line or 1)
            notes += scope.notes.values()
            for inner in scope.commands:
                joined = Command(inner.words, (*environment.items(), *inner.environment), where, inner.condition)
                yield from started(joined, notes)
        else:
            yield from started(command, notes)


def _joined_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines without comments, a backslash at the end joining the next."""
    joined, start = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith(("#", ";")):
            continue
        start = start if joined else number
        if line.endswith("\\"):
            joined += line[:-1] + " "
            continue
        yield start, joined + line
        joined = ""
    if joined:
        yield start, joined


def _specifiers(text: str) -> str:
    return re.sub(r"%(.)", lambda match: "%" if match[1] == "%" else unresolved(match[0]), text)


def _of_unit(text: str, environment: Mapping[str, Word]) -> str:
    def value(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        word = environment.get(match[1] or match[2])
        return unresolved(match[0]) if word is None else word.text

    return re.sub(r"\$\$|\$\{(\w+)\}|\$(\w+)", value, _specifiers(text))
