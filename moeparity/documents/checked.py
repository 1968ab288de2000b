"""A YAML file checked against the schema of its kind, with what is wrong in words; the files of the package."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache
from importlib import resources
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from moeparity.documents import yaml
from moeparity.errors import SpecError, Where, did_you_mean, listed, shown

Schema = TypeVar("Schema", bound=BaseModel)


def read(path: Path, model: type[Schema]) -> Schema:
    """A file of any kind, by the schema of its kind. Raises SpecError."""
    file = _valid(path, yaml.text_of(path), model)
    assert isinstance(file, model)
    return file


@cache
def shipped(folder: str, ending: str = "yaml") -> Mapping[str, Path]:
    """The files that come with the package, by stem: `models`, `profiles`, `launch` and so on; `configs` are json."""
    root = Path(str(resources.files("moeparity.graphs"))) / folder
    return {path.stem: path for path in sorted(root.glob(f"*.{ending}"))}


# Cached, since every bind reads its profile and all profiles that this extends, even for a small forward pass.
@lru_cache(maxsize=256)
def _valid(path: Path, text: str, model: type[BaseModel]) -> BaseModel:
    return checked(path, yaml.parsed(path, text), model)


def checked(path: Path, data: yaml.Mapping, model: type[Schema]) -> Schema:
    """What a mapping of a file says, by the schema of its kind. Raises SpecError with file and line."""
    (kind,) = get_args(model.model_fields["kind"].annotation)
    if data.get("kind") != kind:
        where = Where(path, data.key_lines.get("kind", 1))
        fault = f"kind is {shown(data['kind'])}" if "kind" in data else "key 'kind' is missing"
        raise SpecError(f"{where}: {fault}; a {kind} is expected here, which says `kind: {kind}`.")
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise SpecError(_message(path, data, model, error)) from None


_EXPECTED = {
    "string_type": "a word",
    "int_type": "a whole number",
    "bool_type": "true or false",
    "float_type": "a number",
    "finite_number": "a finite number",
    "greater_than": "a number above {gt:g}",
    "greater_than_equal": "at least {ge}",
    "less_than_equal": "at most {le:g}",
    "literal_error": "{expected}",
    "list_type": "a list",
    "too_short": "a list of at least {min_length}",
    "dict_type": "a mapping (`key: value`)",
    "model_type": "a mapping (`key: value`)",
    "string_pattern_mismatch": "a name of a-z, 0-9 and _ that starts with a letter",
}
"""pydantic's error types in the words of a message."""


def _message(path: Path, data: yaml.Mapping, model: type[BaseModel], error: ValidationError) -> str:
    keys, says = complaint(data, model, error)
    return f"{_where(path, data, keys)}: {says}"


def complaint(data: Any, model: type[BaseModel], error: ValidationError) -> tuple[list[int | str], str]:
    """Where in the data the mistake is (keys), and what it is, in words.

    Of pydantic's complaints the most deeply nested one counts: unions report every branch, and the deepest complaint is
    most likely about the branch that the user meant, or the one whose shape the data has.
    """
    errors = error.errors()
    of_shape = {"extra_forbidden", "missing", "value_error"}
    deepest = max(errors, key=lambda e: (len(_in_file(data, e["loc"])), e["type"] in of_shape))
    keys = _in_file(data, deepest["loc"])
    return keys, _says(model, deepest, keys, [e for e in errors if _in_file(data, e["loc"]) == keys])


def _says(model: type[BaseModel], error: ErrorDetails, keys: list[int | str], errors: list[ErrorDetails]) -> str:
    """One of pydantic's complaints in words; `errors` are all of them at the same place."""
    place = _place(keys)
    if error["type"] == "extra_forbidden":
        keys_there = _keys_of(model, error["loc"])
        return f"unknown key {place!r}; expected one of {listed(keys_there)}." + did_you_mean(str(keys[-1]), keys_there)
    if error["type"] == "missing":
        return f"{place + ': ' if place else ''}key {error['loc'][-1]!r} is missing. Add it."
    if error["type"] == "value_error":
        why = error["msg"].removeprefix("Value error, ")
        return f"{place}{': ' if place else ''}{why}" + "." * (not why.endswith((".", "?")))
    branches = [e for e in errors if e["type"] in _EXPECTED]
    if error["type"] == "string_pattern_mismatch":
        return f"{place!r} is no name; expected {_expectation(branches)}."
    expected = " ".join(str(branch.get("ctx", {}).get("expected", "")) for branch in branches or [error])
    hint = did_you_mean(str(error["input"]), re.findall("'([^']+)'", expected))
    return f"{place} is {shown(error['input'])}; expected {_expectation(branches or [error])}.{hint}"


def _expectation(branches: Iterable[ErrorDetails]) -> str:
    """What the branches of a union expect, joined: `a word or a number`."""
    words = [_EXPECTED.get(e["type"], e["msg"]).format_map(e.get("ctx", {})) for e in branches]
    if "a number" in words:
        words = [word for word in words if word != "a whole number"]
    return " or ".join(dict.fromkeys(words))


def _place(keys: Iterable[int | str]) -> str:
    """A path of keys as text, such as `rules[0].set.order`."""
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys).removeprefix(".")


def _in_file(data: Any, location: Iterable[int | str]) -> list[int | str]:
    """The keys of pydantic's location that exist in the file (a location also names union branches and missing
    keys).
    """
    keys: list[int | str] = []
    for key in location:
        if (isinstance(data, dict) and key in data) or (isinstance(data, list) and isinstance(key, int)):
            keys.append(key)
            data = data[key]  # type: ignore[index]
    return keys


def _where(path: Path, data: Any, keys: Iterable[int | str]) -> Where:
    where = Where(path, 1)
    for key in keys:
        if isinstance(data, yaml.Mapping):
            where = data.where(str(key))
        data = data[key]
        if isinstance(data, yaml.Mapping) and isinstance(key, int):
            where = Where(data.path, data.line)
    return where


def _keys_of(annotation: Any, location: Sequence[int | str]) -> list[str]:
    """The keys allowed where an unknown one was found: follows pydantic's location through the schema's types."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        fields = {field.alias or name: field.annotation for name, field in annotation.model_fields.items()}
        return list(fields) if len(location) == 1 else _keys_of(fields[str(location[0])], location[1:])
    if get_origin(annotation) is Annotated:
        return _keys_of(get_args(annotation)[0], location)
    inner = [argument for argument in get_args(annotation) if argument is not NoneType]
    if get_origin(annotation) in {dict, list}:
        return _keys_of(inner[-1], location[1:])
    if len(inner) == 1:
        return _keys_of(inner[0], location)
    # For `Node | list[Node]`, pydantic's location names the branch it tried. Branches for words and numbers have no
    # keys.
    is_list = str(location[0]).startswith("list[")
    mappings = [branch for branch in inner if get_origin(branch) is not Literal and branch not in (int, str)]
    return _keys_of(next(branch for branch in mappings if (get_origin(branch) is list) == is_list), location[1:])
