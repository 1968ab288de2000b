"""Reads the three kinds of files and turns pydantic's complaints into one message with file, line and nearest name."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from moeparity.errors import SpecError, Where, did_you_mean, listed
from moeparity.spec import schema, yaml

File = TypeVar("File", schema.GraphFile, schema.ProfileFile, schema.RecipeFile)

KINDS: dict[str, type[BaseModel]] = {
    "graph": schema.GraphFile,
    "profile": schema.ProfileFile,
    "recipe": schema.RecipeFile,
}


def read_graph(path: Path) -> schema.GraphFile:
    """A graph file. Raises SpecError."""
    return _read(path, schema.GraphFile)


def read_profile(path: Path) -> schema.ProfileFile:
    """A profile file. Raises SpecError."""
    return _read(path, schema.ProfileFile)


def read_recipe(path: Path) -> schema.RecipeFile:
    """A recipe file. Raises SpecError."""
    return _read(path, schema.RecipeFile)


def shipped(folder: str) -> dict[str, Path]:
    """The YAML files that come with the package: `models` or `profiles`, by stem."""
    root = Path(str(resources.files("moeparity.graphs"))) / folder
    return {path.stem: path for path in sorted(root.glob("*.yaml"))}


def find_profile(name: str, beside: Where) -> Path:
    """The file of a profile: a path (with `/` or ending in `.yaml`) relative to the file that names it, else shipped."""
    if "/" in name or name.endswith(".yaml"):
        return beside.path.parent / name
    known = shipped("profiles")
    if name not in known:
        raise SpecError(
            f"{beside}: profile {name!r} is not shipped; expected one of {listed(known)}, or a path to a file."
            + did_you_mean(name, known)
        )
    return known[name]


def _read(path: Path, model: type[File]) -> File:
    data = yaml.load(path)
    kind = next(name for name, known in KINDS.items() if known is model)
    if data.get("kind") != kind:
        line = data.key_lines.get("kind", 1)
        raise SpecError(f"{Where(path, line)}: kind is {data.get('kind')!r}; expected {kind!r} here.")
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise SpecError(_message(path, data, model, error)) from None


def _message(path: Path, data: yaml.Mapping, model: type[BaseModel], error: ValidationError) -> str:
    """The complaint that lies deepest in the file: unions report every branch, and the deepest is the branch meant."""
    found = max(error.errors(), key=lambda e: (len(_in_file(data, e["loc"])), e["type"] == "extra_forbidden"))
    keys = _in_file(data, found["loc"])
    where = Where(path, _line(data, keys))
    place = ".".join(str(key) for key in keys) or "the file"
    if found["type"] == "extra_forbidden":
        known = _siblings(model, found["loc"])
        return f"{where}: unknown key {place!r}; expected one of {listed(known)}." + did_you_mean(str(keys[-1]), known)
    if found["type"] == "missing":
        return f"{where}: {place}: key {found['loc'][-1]!r} is missing. Add it."
    given = "" if isinstance(found["input"], dict | list) else f" = {found['input']!r}"
    return f"{where}: {place}{given}: {found['msg'].removeprefix('Value error, ')}."


def _in_file(data: Any, location: Iterable[int | str]) -> list[int | str]:
    """The part of pydantic's location that really is in the file (it also names union branches and missing keys)."""
    keys: list[int | str] = []
    for key in location:
        if (isinstance(data, dict) and key in data) or (isinstance(data, list) and isinstance(key, int)):
            keys.append(key)
            data = data[key]
    return keys


def _line(data: Any, keys: Iterable[int | str]) -> int:
    line = 1
    for key in keys:
        if isinstance(data, yaml.Mapping):
            line = data.key_lines[str(key)]
        data = data[key]
        if isinstance(data, yaml.Mapping) and isinstance(key, int):
            line = data.line
    return line


def _siblings(model: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    """The keys allowed where an unknown one was found: walk the models along the location."""
    current: list[type[BaseModel]] = [model]
    for key in location[:-1]:
        inner = (
            [m for c in current for m in _models_in(c.model_fields[str(key)].annotation)]
            if any(str(key) in c.model_fields for c in current)
            else []
        )
        alias = [
            m for c in current for f in c.model_fields.values() if f.alias == key for m in _models_in(f.annotation)
        ]
        current = inner or alias or current
    return [f.alias or name for c in current for name, f in c.model_fields.items() if name != "line"]


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [m for argument in getattr(annotation, "__args__", ()) for m in _models_in(argument)]
