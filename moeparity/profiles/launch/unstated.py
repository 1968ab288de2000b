"""Options that decide numerics of which no profile states anything: each is a warning by its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moeparity.profiles.launch.options import Implied, Option

_OFF = frozenset({"", "none", "null", "auto", "default", "false", "0", "off", "disabled", "{}", "[]", "0.0"})
"""Values that leave every such option without effect, in lower case."""


def unstated(
    says: str,
    *names: str,
    off: frozenset[str] = frozenset(),
    default: Any = "none",
    role: str = "server",
    environment: bool = False,
) -> Option:
    """One such option: `says` is what it changes, `off` are values beyond the usual ones that change nothing."""
    none = _OFF | off

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

    A key is `name other_spelling = value_without_effect ...`; `name ! value` is an option that has its effect unless it
    is set to that value.
    """
    options = []
    for key, says in meanings.items():
        spellings, _, values = key.partition(" = ")
        spellings, _, until = spellings.partition(" ! ")
        names = tuple(f"{prefix}{name}" for name in spellings.split())
        off = frozenset((*values.split(), until) if until else values.split())
        default = "by default" if until else "none"
        options.append(unstated(says, *names, off=off, default=default, role=role, environment=environment))
    return tuple(options)


def _plain(value: Any) -> str:
    if value is None:
        return "true"
    if isinstance(value, Mapping | list | tuple) and not value:
        return ""
    return str(value).lower()
