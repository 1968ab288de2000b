"""What a launch configuration implies, as frozen plain data."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from moeparity.output.json import to_json
from moeparity.profiles.launch.options import Placed

SCHEMA = "moeparity.launch/1"
"""Grows when a field changes its meaning or goes; new fields may appear without it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSetting:
    """One option: whether it is given, its value or the default that counts instead, and what that implies.

    `profile` is the profile for which it stands, empty if it changes none.
    """

    role: str
    name: str
    given: bool
    value: str
    implies: str
    profile: str
    where: str


def _written(value: int | bool | str | tuple[int, ...]) -> str:
    """A value of a placement in YAML."""
    return value if isinstance(value, str) else json.dumps(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSide:
    """A server, or one side of a trainer with its rollout: its profile, placement and dtype (None: the checkpoint's).

    `further` are profiles on top, whose values a recipe can put into its `set:`. `sets` are values of ops on top of all
    these, `selects` values at addresses, for a recipe's `set:`. `origins` says where each profile, each of `sets` and
    each of `selects` comes from, by its name: a line of the file, or what the engine goes by.
    """

    role: str
    profile: str
    further: tuple[str, ...]
    placement: Placed
    dtype: str | None
    sets: Mapping[str, str | float] = field(default_factory=dict)
    selects: Mapping[str, str | int] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict)

    @property
    def variant(self) -> str:
        """The side as a recipe writes it; of a side that no profile speaks of, that."""
        if not self.profile:
            return "no shipped profile speaks of it"
        parts = [f"profile: {self.profile}"]
        if self.placement:
            inner = ", ".join(f"{axis}: {_written(value)}" for axis, value in self.placement.items())
            parts.append(f"placement: {{{inner}}}")
        parts += [f"dtype: {self.dtype}"] if self.dtype else []
        parts += [f"set: {json.dumps(dict(self.selects))}"] if self.selects else []
        return f"{{{', '.join(parts)}}}"


@dataclass(frozen=True, slots=True, kw_only=True)
class IgnoredKey:
    """A key that was not looked at, with the nearest one that would be; or one that changes nothing, and why."""

    name: str
    where: str
    hint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchWarning:
    """An option of a launch file that changes numerics in a way no profile covers: it is left out of the simulation.

    name, value, where: the option, what it is set to, and its line in the file. Where several options decide together,
    `name` is empty, `value` says what the engine does, and `where` is the place in its source. says: what it changes.
    covered_by: a recipe's `adapter`, or recorded `steps`, has what it says, where there is one.
    """

    role: str
    name: str
    value: str
    where: str
    says: str
    covered_by: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchDecision:
    """What the engine decides for one side from several options or from the model, and where in its source."""

    role: str
    says: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchModel:
    """The model that is launched; `architecture` is the class of its config.json, None where it is not known."""

    name: str
    architecture: str | None
    known_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchNote:
    """What the file names and was not followed, or what was taken for given."""

    says: str
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A launch configuration of one engine, or of several engines that one file starts. `source` is where options and
    defaults of that version were read.

    `unstated` is what the engine does by default and no profile states. `irrelevant` are options known to change no
    log-probability. `together` are options that say which tokens are computed together, which a recipe says in its own
    words. `ignored` were not looked at. `another_model`: the file names a model which is plainly not the one of the
    checkpoint with which it was read. `resolved_by` is the engine that wrote what it
    resolved into the file; empty if the file starts the engine.
    """

    file: str
    engine: str
    version: str
    source: str
    model: LaunchModel
    warnings: tuple[LaunchWarning, ...]
    sides: tuple[LaunchSide, ...]
    decisions: tuple[LaunchDecision, ...]
    settings: tuple[LaunchSetting, ...]
    unstated: tuple[str, ...]
    irrelevant: tuple[IgnoredKey, ...]
    together: tuple[IgnoredKey, ...]
    ignored: tuple[IgnoredKey, ...]
    notes: tuple[LaunchNote, ...] = ()
    another_model: str = ""
    resolved_by: str = ""

    @property
    def basis(self) -> str:
        """By which of both it is known: what the engine resolved, or the file that starts it."""
        if self.resolved_by:
            return f"as {self.resolved_by} resolved its arguments itself, by {self.file}"
        return f"as {self.file} starts it"

    def to_json(self) -> str:
        """The data as JSON, with the name of its schema."""
        return to_json(SCHEMA, LaunchDocument(found=self), indent=2) + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchDocument:
    """What `moeparity show launch FILE --json` writes."""

    found: Launch


def joined(launches: Sequence[Launch]) -> Launch:
    """The programs of one file as one launch: each has sides of its own."""
    if len(launches) == 1:
        return launches[0]

    def joined_names(name: str) -> str:
        return " and ".join(getattr(launch, name) for launch in launches)

    return Launch(
        file=launches[0].file,
        engine=joined_names("engine"),
        version=joined_names("version"),
        source=joined_names("source"),
        model=launches[0].model,
        warnings=tuple(warning for launch in launches for warning in launch.warnings),
        sides=tuple(side for launch in launches for side in launch.sides),
        decisions=tuple(decision for launch in launches for decision in launch.decisions),
        settings=tuple(setting for launch in launches for setting in launch.settings),
        unstated=tuple(line for launch in launches for line in launch.unstated),
        irrelevant=tuple(key for launch in launches for key in launch.irrelevant),
        together=tuple(key for launch in launches for key in launch.together),
        ignored=tuple(key for launch in launches for key in launch.ignored),
        notes=tuple(dict.fromkeys(note for launch in launches for note in launch.notes)),
        another_model="; ".join(launch.another_model for launch in launches if launch.another_model),
    )
