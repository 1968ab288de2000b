"""Engines made in Python: calls such as `LLM(...)` and `sgl.Engine(...)`, read from the syntax tree and never run."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from moeparity.errors import SpecError, Where
from moeparity.profiles.launch.reading import releases
from moeparity.profiles.launch.reading.python_environment import variables
from moeparity.profiles.launch.reading.python_models import trained, unread
from moeparity.profiles.launch.reading.python_names import Names, as_option, is_missing
from moeparity.profiles.launch.source import Entry, Note, Source

CALLS = {
    "vllm": ("LLM", "EngineArgs", "AsyncEngineArgs"),
    "sglang": ("Engine", "ServerArgs", "Runtime"),
    "trl": ("GRPOConfig", "RLOOConfig", "OnlineDPOConfig"),
}
"""By package, what takes an engine's options as keywords."""


def of_python(text: str, path: Path) -> list[Source]:
    """A source for every engine that a file makes. Raises SpecError where it is no Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            tree = ast.parse(text)
        reader = Names(tree, path)
        environment, notes = variables(reader)
        notes = (*notes, *releases.of_python(reader, text))
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        sources = [source for call in calls if (source := _source(reader, call, environment, notes)) is not None]
    except SyntaxError as error:
        where = Where(path, error.lineno)
        raise SpecError(f"{where}: is no Python: {error.msg}. Correct it, or give the command line.") from None
    except (ValueError, RecursionError, MemoryError):
        raise SpecError(f"{Where(path)}: is no Python that can be read: nested too deeply, or a NUL in it.") from None
    return sources


def _source(reader: Names, call: ast.Call, environment: tuple[Entry, ...], before: tuple[Note, ...]) -> Source | None:
    package, name = reader.qualified(call.func)
    if name not in CALLS.get(package, ()):
        return None
    notes = [*before]
    entries: list[Entry] = []
    if call.args and name in ("LLM", "Engine"):
        entries.append(Entry(name="model", value=reader.resolved(call.args[0]), where=reader.where(call)))
    for keyword in call.keywords:
        where = reader.where(keyword)
        if keyword.arg is not None:
            value = reader.resolved(keyword.value)
            entries.append(Entry(name=keyword.arg, value=as_option(value), where=where))
            entries += [Entry(name=f"{keyword.arg}.{key}", value=as_option(v), where=where) for key, v in _pairs(value)]
            continue
        pairs = reader.value(keyword.value)
        if isinstance(pairs, Mapping) and not is_missing(pairs):
            entries += [Entry(name=str(key), value=as_option(value), where=where) for key, value in pairs.items()]
        else:
            says = f"`**{ast.unparse(keyword.value)[:60]}` is not resolved: what it sets is not known"
            notes.append(Note(says=says, where=where, opens="options"))
    if package == "trl":
        entries += trained(reader)
        notes += unread(reader)
    return Source(
        path=reader.path,
        options=tuple(entries),
        environment=environment,
        command=(f"{package}.{name}",),
        notes=tuple(notes),
    )


def _pairs(value: Any) -> Iterator[tuple[str, Any]]:
    yield from value.items() if isinstance(value, Mapping) else ()
