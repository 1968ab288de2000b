"""`Format`: who writes it, how its files are recognised and read, and who made the file that its tests read."""

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

    name: as `--format` takes it. producer: which program writes which file. container: the kind of file.
    claims: whether a record is of this format, by its keys; no two formats claim one record.
    read: gives the sequences of a record; if a record has only one side's log-probabilities, as those of the given
    side.
    source: project, version and file in which the fields were read. fixture: who made the file that the tests read.
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
    """A known kind of file that has no log-probabilities, or none that can be read safely."""

    name: str
    claims: Callable[[Mapping[str, Any]], bool]
    reason: str
