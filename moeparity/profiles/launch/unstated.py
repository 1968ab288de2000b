"""Options that decide numerics of which no profile states anything: each is a warning by its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moeparity.profiles.launch.options import Implied, Option

_OFF = frozenset({"", "none", "null", "auto", "default", "false", "0", "off", "disabled", "{}", "[]", "0.0"})
"""Values that leave every such option without effect, in lower case."""
_NUMBERED = {"true": frozenset({"1"}), "false": frozenset({"0"})}


def unstated(
    says: str,
    *names: str,
    none: frozenset[str] = _OFF,
    default: Any = "none",
    role: str = "server",
    environment: bool = False,
) -> Option:
    """One such option: `says` is what it changes, `none` are the values, in lower case, that change nothing."""

    def implies(value: Any) -> Implied:
        if _plain(value) in none:
            return Implied(says="off", shows=False)
        return Implied(says="no shipped profile states it", warns=says)

    return Option(
        names=names, kind="any", default=default, implies=implies, role=role, environment=environment, quiet=True
    )


def table(
    meanings: Mapping[str, str], *, prefix: str = "", role: str = "server", environment: bool = False
) -> tuple[Option, ...]:
    """Such options as a mapping from spellings to what they change.

    A key is `name other_spelling = value_without_effect ...`. `name ! value` is an option that has its effect unless it
    is set to that value; of `name unless value ...`, where nothing is set stands such a value, and any other warns.
    """
    return tuple(_row(key, says, prefix, role, environment=environment) for key, says in meanings.items())


def _row(key: str, says: str, prefix: str, role: str, *, environment: bool) -> Option:
    spellings, _, alike = key.partition(" unless ")
    spellings, _, values = spellings.partition(" = ")
    spellings, _, until = spellings.partition(" ! ")
    names = tuple(f"{prefix}{name}" for name in spellings.split())
    none = frozenset((alike or until).split()) | _NUMBERED.get(until, frozenset())
    none = none or _OFF.union(values.split())
    default = "by default" if until else alike.partition(" ")[0] or "none"
    return unstated(says, *names, none=none, default=default, role=role, environment=environment)


def _plain(value: Any) -> str:
    if value is None:
        return "true"
    if isinstance(value, Mapping | list | tuple) and not value:
        return ""
    return str(value).lower()
