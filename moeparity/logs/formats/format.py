"""What a format is: who writes it, how its files are known, and by whom the fixture of its tests was made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from moeparity.logs.formats.fields import Fields
from moeparity.logs.record import Sequence

Role = Literal["rollout", "trainer"]
ContainerKind = Literal["json", "torch", "parquet", "safetensors"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A format of one producer.

    name: as `--format` takes it. producer: who writes which file. container: what the file is.
    claims: whether a record is of this format, from its keys; no two formats claim one record.
    read: the sequences of a record, by the side whose log-probabilities are wanted of a file that has one side's only.
    source: project, version and file where the fields were read. fixture: who made the file that the tests read.
    """

    name: str
    producer: str
    container: ContainerKind
    claims: Callable[[Mapping[str, Any]], bool]
    read: Callable[[Fields, Role], list[Sequence]]
    source: str
    fixture: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """A file that is known and holds no log-probabilities, or none that can be read safely."""

    name: str
    claims: Callable[[Mapping[str, Any]], bool]
    reason: str
