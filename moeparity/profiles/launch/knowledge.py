"""What is known of each program's options as data, in graphs/launch: options of no profile, and lists of names."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import cache
from typing import Any

from moeparity.documents import yaml
from moeparity.documents.checked import read, shipped
from moeparity.errors import SpecError, did_you_mean
from moeparity.errors import listed as listed_words
from moeparity.profiles.launch.launch_schema import ADAPTER, OF_STEPS, STEPS, LaunchFile, UnstatedGroup, UnstatedOption
from moeparity.profiles.launch.options import Implied, Option

_OFF = frozenset({"", "none", "null", "auto", "default", "false", "0", "off", "disabled", "{}", "[]", "0.0"})
"""Values that leave every such option without effect, in lower case."""
_NUMBERED = {"true": "1", "false": "0"}


@cache
def options_file(program: str) -> LaunchFile:
    """The file of a program, as `vllm`. Raises SpecError for a file with a mistake."""
    return read(shipped("launch")[program], LaunchFile)


def listed(program: str, *lists: str) -> frozenset[str]:
    """The names in some lists of a program's file."""
    return frozenset(name for of in lists for name in options_file(program).lists[of])


def unstated(program: str, *groups: str, below: str | None = None, role: str | None = None) -> tuple[Option, ...]:
    """The options of some groups that no profile states, of all where none is named: each is a warning by its name.

    `below` and `role` stand in place of the group's own, for a trainer that hands them on to another program.
    """
    file = options_file(program)
    return tuple(
        _option(file, group, name, option, group.below if below is None else below, role or group.role)
        for group_name, group in file.unstated.items()
        if not groups or group_name in groups
        for name, option in group.options.items()
    )


def groups_tokens(name: str) -> bool:
    """Whether an option of that name says which tokens, or which experts' rows, are computed together."""
    return not listed("shared", "together").isdisjoint(name.removeprefix("sglang_").split("."))


def _option(
    file: LaunchFile, group: UnstatedGroup, name: str, option: str | UnstatedOption, below: str, role: str
) -> Option:
    spec = UnstatedOption(changes=option) if isinstance(option, str) else option
    without_effect = frozenset(_values(spec.unless or spec.default)) or _OFF.union(map(_plain, spec.off))
    reason = _reason(file, group, name, spec)
    default = "by default" if spec.unless else _plain(spec.default[0]) if spec.default else "none"

    def implies(value: Any) -> Implied:
        is_off = _plain(value) in without_effect
        if spec.of is not None:
            return Implied(says=f"of {spec.of}", shows=not is_off)
        if is_off:
            return Implied(says="off", shows=False)
        if spec.changes == ADAPTER:
            return Implied(says="a LoRA adapter, which a recipe names", warns=reason, covered_by=ADAPTER)
        covered_by = STEPS if spec.changes in OF_STEPS else None
        return Implied(says="no shipped profile states it", warns=reason, covered_by=covered_by)

    return Option(
        names=tuple(f"{below}{each}" for each in (name, *spec.also)),
        kind="any",
        default=default,
        implies=implies,
        role=role,
        environment=group.environment,
        concerns=spec.concerns or "",
        quiet=True,
    )


def _reason(file: LaunchFile, group: UnstatedGroup, name: str, spec: UnstatedOption) -> str:
    """What an option changes, in words. Raises SpecError for the name of a reason that the file does not have."""
    reason = spec.changes or ""
    if " " in reason or not reason:
        return reason
    if reason not in file.reasons:
        assert isinstance(group.options, yaml.Mapping)
        raise SpecError(
            f"{group.options.where(name)}: {reason!r} is none of the file's `reasons`, and no sentence; expected one "
            f"of {listed_words(file.reasons)}.{did_you_mean(reason, file.reasons)}"
        )
    return file.reasons[reason]


def _values(values: Collection[Any]) -> Iterator[str]:
    """The values as text; of true and false both spellings."""
    for value in map(_plain, values):
        yield from (value, _NUMBERED.get(value, value))


def _plain(value: Any) -> str:
    if value is None:
        return "true"
    if isinstance(value, Mapping | list | tuple) and not value:
        return ""
    return str(value).lower()
