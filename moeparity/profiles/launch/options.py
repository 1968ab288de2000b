"""What an option of a launch configuration is: its spellings, its default, and what its values imply."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

UNKNOWN = "no shipped profile speaks of {}"
NO_PROFILE = ""
"""In place of a profile, where none speaks of a side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Implied:
    """What a value means for one side: another base profile, an overlay, a placement, a dtype, or words only.

    `says` is for people; a value of which no profile knows says so there.
    """

    says: str
    profile: str | None = None
    overlay: str | None = None
    placement: Mapping[str, int | bool] = field(default_factory=dict)
    dtype: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option: `names` are its spellings with underscores, the engine's own first; dotted in nested files.

    `default` is what it becomes where it is not set. `environment`: it is an environment variable. `role` is the side
    it concerns: `server`, or `trainer` and `rollout`.
    """

    names: tuple[str, ...]
    kind: Literal["count", "number", "flag", "word", "mapping"]
    default: Any
    implies: Callable[[Any], Implied]
    choices: tuple[str, ...] = ()
    environment: bool = False
    role: str = "server"

    @property
    def name(self) -> str:
        """As the engine spells it."""
        return self.names[0]


def count(*names: str, implies: Callable[[Any], Implied], default: int = 1, role: str = "server") -> Option:
    """An option that is a whole number from 1."""
    return Option(names=names, kind="count", default=default, implies=implies, role=role)


def number(*names: str, implies: Callable[[Any], Implied], default: float = 1.0, role: str = "server") -> Option:
    """An option that is a number from 0, within fp32."""
    return Option(names=names, kind="number", default=default, implies=implies, role=role)


def switch(
    *names: str, on: Implied, off: Implied, default: bool = False, role: str = "server", environment: bool = False
) -> Option:
    """An option that is set or not."""
    return Option(
        names=names,
        kind="flag",
        default=default,
        implies=lambda value: on if value else off,
        role=role,
        environment=environment,
    )


def word(
    *names: str,
    default: str,
    implies: Callable[[Any], Implied],
    choices: tuple[str, ...] = (),
    role: str = "server",
    environment: bool = False,
) -> Option:
    """An option that is one of several words, or any word."""
    return Option(
        names=names,
        kind="word",
        default=default,
        implies=implies,
        choices=choices,
        role=role,
        environment=environment,
    )


def words(meanings: Mapping[str, Implied], otherwise: str = UNKNOWN) -> Callable[[Any], Implied]:
    """What a word implies; for one that no profile speaks of, `otherwise` with the word put in."""
    return lambda value: meanings.get(str(value), Implied(says=otherwise.format(value)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """An engine that is launched: the profile each of its sides starts from, its options, and what is said of them.

    `source` is where options and defaults were read.
    """

    name: str
    engine: str
    version: str
    source: str
    start: Mapping[str, str]
    options: tuple[Option, ...]
