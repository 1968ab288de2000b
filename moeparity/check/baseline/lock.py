"""The file format of the lock. It is sorted, with one node a line, so that people can read its diffs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError, model_validator

from moeparity import paths
from moeparity.errors import MoeparityError, Where, shown

FAMILY, VERSION = "moeparity.lock", 1
SCHEMA = f"{FAMILY}/{VERSION}"
"""The number grows if the meaning of what is kept changes."""

_ANEW = "Restore it from git, or remove it and write it anew with `--update`"
_DIGITS = re.compile(r"(\d+)")


class _LockModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)


class Budget(_LockModel):
    """The values that a metric may have on any machine: one inclusive bound."""

    at_most: FiniteFloat | None = None
    at_least: FiniteFloat | None = None

    @model_validator(mode="after")
    def _one_bound(self) -> Self:
        if (self.at_most is None) == (self.at_least is None):
            raise ValueError("expected one of at_most, at_least")
        return self

    def __str__(self) -> str:
        """`at most 0.0005`."""
        return f"at least {self.at_least:g}" if self.at_least is not None else f"at most {self.at_most:g}"

    def holds(self, value: float) -> bool:
        """Whether a value keeps the budget; NaN keeps none."""
        return value <= self.at_most if self.at_most is not None else value >= (self.at_least or 0.0)


class Bits(_LockModel):
    """Digests of what one kind of machine computed: of the tokens, and of each node's values on both sides."""

    tokens: str
    reference: dict[str, str]
    candidate: dict[str, str]


Side = Literal["reference", "candidate"]
Choices = dict[str, dict[str, Annotated[list[str], Field(min_length=2, max_length=2)]]]
"""node -> choice -> [value, evidence]."""


class Entry(_LockModel):
    """What is kept of one recipe.

    sides: profile, dtype, schedule and placement of each, in words. tokens: a digest, None if the run samples its
    tokens.
    weights: digests by node, and of config.json. machines: key of a machine -> bits.
    """

    sides: dict[Side, str]
    budgets: dict[str, Budget] = Field(min_length=1)
    tokens: str | None
    weights: dict[str, str]
    choices: dict[Side, Choices]
    machines: dict[str, Bits]


class Lock(_LockModel):
    """All entries of a lock, by the recipe's path relative to the lock's folder."""

    recipes: dict[str, Entry]


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a lock."""
    body = Lock.model_json_schema()
    properties = {"schema": {"const": SCHEMA}, **body["properties"]}
    draft = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return {**draft, **body, "title": SCHEMA, "properties": properties, "required": list(properties)}


def read(path: Path) -> Lock:
    """Read a lock. Raises MoeparityError if it is missing or damaged, or has another version or form."""
    try:
        text = paths.contents(path, "baseline").decode()
    except OSError as error:
        raise MoeparityError(
            f"{Where(path)}: the lock cannot be read: {error.strerror}. Is it in git? `--update` writes a new one."
        ) from None
    except ValueError:
        raise MoeparityError(f"{Where(path)}: the lock is no UTF-8 text. {_ANEW}.") from None
    fields = _fields(text, path)
    _refuse_version(fields.pop("schema", None), path)
    try:
        return Lock.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        at = " > ".join(str(part) for part in first["loc"])
        raise MoeparityError(
            f"{Where(path)}: the lock is not as it was written: {at}: {first['msg']}. {_ANEW}."
        ) from None


def _fields(text: str, path: Path) -> dict[str, Any]:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        twice = next((name for name in names if names.count(name) > 1), None) if len(set(names)) < len(names) else None
        if twice is not None:
            raise MoeparityError(f"{Where(path)}: the lock has {twice!r} twice. {_ANEW}.")
        return dict(pairs)

    try:
        fields = json.loads(text, object_pairs_hook=once)
    except json.JSONDecodeError as error:
        raise MoeparityError(
            f"{Where(path, error.lineno)}: the lock is no JSON: {error.msg}. It is cut off, or a merge left "
            f"its marks. {_ANEW}."
        ) from None
    except (ValueError, RecursionError):
        raise MoeparityError(f"{Where(path)}: the lock is no JSON that can be read. {_ANEW}.") from None
    if not isinstance(fields, dict):
        raise MoeparityError(f"{Where(path)}: the lock is {shown(fields)}, expected an object. {_ANEW}.")
    return fields


def _refuse_version(schema: object, path: Path) -> None:
    if schema == SCHEMA:
        return
    family, _, number = str(schema).partition("/")
    if family != FAMILY or not number.isdigit():
        raise MoeparityError(f"{Where(path)}: no lock: its schema is {shown(schema)}, expected {SCHEMA!r}.")
    newer = int(number) > VERSION
    advice = "Upgrade moeparity" if newer else _ANEW
    raise MoeparityError(
        f"{Where(path)}: the lock is of {schema}, a {'newer' if newer else 'past'} moeparity's; this one reads "
        f"{SCHEMA}. {advice}."
    )


def text(lock: Lock) -> str:
    """The lock as JSON: sorted, with a node's choices and each budget on one line."""
    document = {"schema": SCHEMA, **lock.model_dump(mode="json", exclude_none=False)}
    for entry in document["recipes"].values():
        entry["budgets"] = {
            name: {bound: value for bound, value in budget.items() if value is not None}
            for name, budget in entry["budgets"].items()
        }
    return _text(document, ())


def _text(value: Any, at: tuple[str, ...]) -> str:
    on_one_line = (len(at) == 4 and at[2] == "budgets") or (len(at) == 5 and at[2] == "choices")
    if not isinstance(value, Mapping) or not value or on_one_line:
        return json.dumps(value, ensure_ascii=False, sort_keys=True, allow_nan=False)
    names = list(value) if not at else sorted(value, key=natural)
    indent = " " * (len(at) + 1)
    lines = [f"{indent}{json.dumps(name, ensure_ascii=False)}: {_text(value[name], (*at, name))}" for name in names]
    return "{\n" + ",\n".join(lines) + "\n" + " " * len(at) + "}"


def natural(name: str) -> list[tuple[int, int | str]]:
    """A key that sorts `layers[2]` before `layers[10]`."""
    return [(0, int(part)) if part.isdigit() else (1, part) for part in _DIGITS.split(name)]
