"""Engine profiles as frozen plain data: the list, what one states, and the difference of two, without weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from moeparity.ops.measured import Share
from moeparity.output.json import to_json

SCHEMA = "moeparity.engines/3"
"""Grows when a field changes its meaning or goes; new fields may appear without it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """One value that a profile states: on what (`op`, or a fused chain), for which models of which sizes, in which
    phases of a schedule (none named: all), how sure.

    `set_by` is what a user gives the engine to have it (`default`: nothing).
    """

    on: str
    model_types: tuple[str, ...]
    attribute: str
    value: str
    evidence: str
    source: str
    set_by: str
    phases: tuple[str, ...] = ()
    sizes: str = ""

    @property
    def of_rule(self) -> tuple[str | tuple[str, ...], ...]:
        """What all that one rule states has in common."""
        return (self.on, self.model_types, self.sizes, self.phases, self.source, self.set_by)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlagEffect:
    """A flag that a profile knows: the profile it `becomes` (empty: none, then what it `sets`), for which ops (none
    named: all). With neither it is not known what it does.

    `condition` is where that holds in words (`qwen3_moe; 2, 4, 8 ranks`), empty where it goes by neither.
    """

    flag: str
    becomes: str
    ops: tuple[str, ...]
    sets: tuple[Statement, ...]
    condition: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProfile:
    """A shipped or a user's profile: of which engine and version it speaks, in which setup, and what it leaves open.

    `about` and `not_stated` are the comment at its top; `extends` is the profile it takes the rest from, `flags` what
    its file says of flags.
    """

    name: str
    engine: str
    version: str
    says: str
    extends: str | None
    about: str
    not_stated: str
    flags: tuple[FlagEffect, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stand:
    """What one engine does there: its value, how sure its profile is, by what it is set, and the flags that give the
    other's.
    """

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
    """What `moeparity show engines --json` writes: how two profiles differ, what one states, or the list of all."""

    found: EngineDifference | Sequence[EngineProfile] | Sequence[Statement]


def engines_json(result: EngineDifference | Sequence[EngineProfile] | Sequence[Statement]) -> str:
    """The data as JSON, with the name of its schema."""
    return to_json(SCHEMA, EnginesDocument(found=result), indent=2) + "\n"
