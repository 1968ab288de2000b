"""What a launch file gives, whatever it is written in: options and environment variables with their places."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from moeparity.errors import Where

TRUE, FALSE = ("1", "true", "True"), ("0", "false", "False")


@dataclass(frozen=True, slots=True)
class Unresolved:
    """A value that the file alone does not tell: `text` is what stands there, or the values it may have."""

    text: str

    def __str__(self) -> str:
        return f"unresolved: {self.text}"


class Null:
    """`null`, as a file or an override has it: nothing is set, or a switch is off."""

    def __bool__(self) -> bool:
        return False

    def __str__(self) -> str:
        return "null"


NULL = Null()


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One option as it was written. `value` is None for a bare flag, NULL for `null`, an Unresolved if the file does
    not tell it.
    """

    name: str
    value: Any
    where: Where


Opens = Literal["", "options", "environment"]
"""What something that was not read may set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """What a reader could not follow, or took for given, in words; `opens` says what it may set."""

    says: str
    where: Where
    opens: Opens = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed(Note):
    """A release that a file installs, or whose image it starts."""

    package: str
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware(Note):
    """What a file says of the hardware on which its program runs, where that is no NVIDIA GPU."""

    device: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What a file gives to one program: options, environment variables, and the words of its command (none for a
    mapping).

    `model` is the word that names the model, if it counts. `notes` name what may decide an option and was not followed.
    `resolved_by` is the engine that told these values itself; empty if a launch file asks for them.
    """

    path: Path
    options: tuple[Entry, ...]
    environment: tuple[Entry, ...] = ()
    command: tuple[str, ...] = field(default=())
    model: Entry | None = None
    notes: tuple[Note, ...] = ()
    resolved_by: str = ""
