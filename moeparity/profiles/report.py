"""Engine profiles as frozen plain data: the list, what one states, and the difference of two, without weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from moeparity.ops.measured import Share
from moeparity.output.json import to_json

SCHEMA = "moeparity.engines/2"
"""Grows when a field changes its meaning or goes; new fields may appear without it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProfile:
    """A shipped or a user's profile: of which engine and version it speaks, in which setup, and what it leaves open.

    `about` and `not_stated` are the comment at its top; `extends` is the profile it takes the rest from.
    """

    name: str
    engine: str
    version: str
    says: str
    extends: str | None
    about: str
    not_stated: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """One value that a profile states: on what (`op`, or a fused chain), for which models, in which phases of a
    schedule (none named: all), how sure.

    `set_by` is what a user gives the engine to have it (`default`: nothing), `changed_by` what would give another
    (`none`: nothing does).
    """

    on: str
    model_types: tuple[str, ...]
    attribute: str
    value: str
    evidence: str
    source: str
    set_by: str
    changed_by: str
    phases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stand:
    """What one engine does there: its value, how sure its profile is, by what it is set, and what would change it."""

    value: str
    evidence: str
    set_by: str
    changed_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineToggle:
    """One difference of two engines; `share` is None where nothing committed says what it changes."""

    name: str
    kind: str
    nodes: int
    share: Share | None
    first: Stand
    second: Stand


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineDifference:
    """Two profiles bound to one architecture: what differs, what only one of them states, what neither does.

    `alike` counts the choices that both state with the same value. `known_of_one` are choices with one value on both
    sides, which rests on a default where the other profile is silent.
    """

    architecture: str
    placement: str
    first: EngineProfile
    second: EngineProfile
    toggles: tuple[EngineToggle, ...]
    alike: int
    known_of_first: tuple[str, ...]
    known_of_second: tuple[str, ...]
    known_of_neither: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginesDocument:
    """What `moeparity engines --json` writes: how two profiles differ, what one states, or the list of all."""

    found: EngineDifference | Sequence[EngineProfile] | Sequence[Statement]


def engines_json(result: EngineDifference | Sequence[EngineProfile] | Sequence[Statement]) -> str:
    """The data as JSON, with the name of its schema."""
    return to_json(SCHEMA, EnginesDocument(found=result), indent=2) + "\n"
