"""A contract: the choices that one side of a recipe claims to run, with their digests.

It is a JSON file, written by `moeparity contract` and read when an engine or a trainer starts (`docs/contract.md`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from moeparity import paths
from moeparity.errors import ContractError, Where, listed
from moeparity.output.json import digest, plain, to_json
from moeparity.plan.schedule.settings import ScheduleSettings

SCHEMA = "moeparity.contract/1"
"""Schema of the JSON. The number grows if a field goes or changes its meaning."""
_ANEW = "Write it anew with `moeparity contract`"

Section = TypeVar("Section", bound="Claim")


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A section of a contract. digest: of everything else in it, made as `docs/ci.md` says of reports."""

    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorClaim:
    """A tensor of the checkpoint as the side holds it. bits: 16 hexadecimal digits, the sum that `docs/weights.md`
    defines.
    """

    dtype: str
    shape: tuple[int, ...]
    bits: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsClaim(Claim):
    """Every tensor, by its name in the checkpoint."""

    tensors: Mapping[str, TensorClaim]


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentClaim(Claim):
    """Fields of the environment report of `moeparity.ranks`; other fields are not claimed."""

    fields: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeClaim:
    """What a node runs: its op, and the value of every choice that takes effect there, by phase if phases differ."""

    op: str
    choices: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileClaim(Claim):
    """The profile's name, its engine and version ("" for none), the dtype in which the side runs, the phases for which
    choices are given, and the choices of every node.
    """

    name: str
    engine: str
    version: str
    dtype: str
    phases: tuple[str, ...]
    nodes: Mapping[str, NodeClaim]


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsClaim(Claim):
    """The settings of a placement or a schedule, by name."""

    settings: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """What one side of a recipe claims to run."""

    recipe: str
    side: str
    model_type: str
    weights: WeightsClaim
    environment: EnvironmentClaim
    profile: ProfileClaim
    placement: SettingsClaim
    schedule: SettingsClaim

    def to_json(self) -> str:
        """The contract as strict JSON."""
        return to_json(SCHEMA, self)


def schedule_words(of: ScheduleSettings) -> dict[str, str]:
    """Every setting of a schedule, in the words of a contract; for a recorded schedule a digest."""
    words = {field.name: str(getattr(of, field.name)) for field in fields(of) if field.name != "recorded"}
    return words | {"recorded": "None" if of.recorded is None else digest({"steps": repr(of.recorded)})}


SECTIONS = ("weights", "environment", "profile", "placement", "schedule")


def sealed(section: Section) -> Section:
    """The section with its digest filled in."""
    return replace(section, digest=digest(plain(section)))


def read_contract(path: Path) -> Contract:
    """Reads a contract. Raises ContractError for one that can't be read, is of another version, or was edited."""
    document = _document(path)
    if document.get("schema") != SCHEMA:
        raise ContractError(f"{Where(path)}: schema {document.get('schema')!r}; expected {SCHEMA}. {_ANEW}.")
    try:
        contract = _ADAPTER.validate_python({key: value for key, value in document.items() if key in _FIELDS})
    except ValidationError as error:
        first = error.errors()[0]
        at = ".".join(str(part) for part in first["loc"])
        raise ContractError(f"{Where(path)}: not as a contract is written: {at}: {first['msg']}. {_ANEW}.") from None
    edited = [name for name in SECTIONS if document[name].get("digest") != digest(document[name])]
    if edited or document.get("digest") != digest(document):
        raise ContractError(
            f"{Where(path)}: {listed(edited or ['it'])} was edited: its digest is not that of its contents. {_ANEW}."
        )
    return contract


def _document(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(paths.contents(path, "contract"))
    except OSError as error:
        raise ContractError(f"{Where(path)}: can't be read: {error.strerror}. Check the path.") from None
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise ContractError(f"{Where(path)}: no contract: expected a JSON object. {_ANEW}.")
    return document


_ADAPTER = TypeAdapter(Contract)
_FIELDS = {field.name for field in fields(Contract)}
