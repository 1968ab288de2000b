"""A launch configuration -> which profiles and placements it implies, with every option that is left unset."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from moeparity.errors import SpecError, Where, did_you_mean, listed, shown
from moeparity.plan.spec import reader
from moeparity.profiles.launch.options import NO_PROFILE, Implied, Option, Program
from moeparity.profiles.launch.programs import programs_of
from moeparity.profiles.launch.report import IgnoredKey, Launch, LaunchNote, LaunchSetting, LaunchSide, joined
from moeparity.profiles.launch.source import FALSE, TRUE, Entry, Source, Unresolved

_TOGETHER = {("vllm-batch-invariant", "vllm-eager"): "vllm-batch-invariant-eager"}
"""A profile and an overlay that are one profile together."""
_OFF = {
    ("vllm-batch-invariant", "vllm-allreduce-norm"),
    ("sglang-deterministic", "sglang-allreduce-norm"),
    ("sglang-rl-on-policy", "sglang-allreduce-norm"),
}
"""Overlays that a profile switches off."""
_UNCOMPILED = {"vllm-eager": "vllm-allreduce-norm"}
"""Overlays without which another is not made: vLLM fuses as it compiles."""
_TOO_LARGE = 2.0**128
"""For fp32."""
_UNSET = (None, "none", "None", "null")


def read(path: Path) -> Launch:
    """What a launch configuration implies. Raises SpecError with file and line."""
    return joined([_launch(source, program) for source, program in programs_of(path)])


def _launch(source: Source, program: Program) -> Launch:
    options = {name: option for option in program.options for name in option.names}
    values: dict[str, tuple[Entry, Any]] = {}
    ignored = []
    for entry in (*source.options, *source.environment):
        option = options.get(entry.name)
        negated = options.get(entry.name.removeprefix("no_")) if entry.name.startswith("no_") else None
        if option is not None and option.environment == (entry in source.environment):
            values[option.name] = entry, _value(option, entry)
        elif negated is not None and negated.kind == "flag":
            values[negated.name] = entry, False
        elif not isinstance(entry.value, Mapping) and not _inside(entry.name, values):
            ignored.append(IgnoredKey(name=entry.name, where=str(entry.where), hint=_hint(entry.name, options)))
    settings = [(option, *values.get(option.name, (None, option.default))) for option in program.options]
    implied = [_implied(option, value) for option, _, value in settings]
    sides = {
        role: _side(role, start, [i for (o, *_), i in zip(settings, implied, strict=True) if o.role == role])
        for role, start in program.start.items()
    }
    return Launch(
        file=str(Where(source.path)),
        engine=program.engine,
        version=program.version,
        source=program.source,
        sides=tuple(sides.values()),
        settings=tuple(
            _setting(option, entry, value, i, sides[option.role])
            for (option, entry, value), i in zip(settings, implied, strict=True)
        ),
        ignored=tuple(ignored),
        notes=tuple(LaunchNote(says=note.says, where=str(note.where)) for note in source.notes),
    )


def _implied(option: Option, value: Any) -> Implied:
    if isinstance(value, Unresolved):
        return Implied(says="not resolved: what it decides is not known")
    return option.implies(value)


def _inside(name: str, settings: Mapping[str, Any]) -> bool:
    """Whether this is a key of a mapping that was read whole."""
    return any(name.startswith(f"{option}.") for option in settings)


def _value(option: Option, entry: Entry) -> Any:
    """The value as its option's kind; SpecError where it is none."""
    value = entry.value
    if isinstance(value, Unresolved):
        return value
    if option.kind == "flag":
        return _flag(option, entry)
    if option.kind == "count":
        number = int(value) if isinstance(value, str) and value.isdecimal() else value
        if isinstance(number, int) and not isinstance(number, bool) and number >= 1:
            return number
        raise _mismatch(option, entry, "a whole number from 1")
    if option.kind == "number":
        return _number(option, entry)
    if option.kind == "mapping":
        return _mapping(option, entry)
    word = "none" if value in _UNSET and "none" in (option.default, *option.choices) else value
    word = option.default if word in (None, "null") else str(word)
    if option.choices and word not in option.choices:
        raise _mismatch(option, entry, f"one of {listed(option.choices)}", did_you_mean(word, option.choices))
    return word


def _number(option: Option, entry: Entry) -> float:
    try:
        number = math.nan if isinstance(entry.value, bool) else float(entry.value)
    except (TypeError, ValueError):
        number = math.nan
    if not 0 <= number < _TOO_LARGE:
        raise _mismatch(option, entry, "a number from 0")
    return number


def _flag(option: Option, entry: Entry) -> bool:
    if entry.value is None or entry.value is True or str(entry.value) in TRUE:
        return True
    if entry.value is False or str(entry.value) in FALSE:
        return False
    raise _mismatch(option, entry, "true or false")


def _mapping(option: Option, entry: Entry) -> Mapping[str, Any]:
    if isinstance(entry.value, Mapping):
        return entry.value
    try:
        mapping = json.loads(entry.value) if isinstance(entry.value, str) else None
    except ValueError:
        mapping = None
    if not isinstance(mapping, dict):
        raise _mismatch(option, entry, "a mapping in JSON")
    return mapping


def _mismatch(option: Option, entry: Entry, expected: str, near: str = "") -> SpecError:
    shown_value = "nothing" if entry.value is None else shown(entry.value)
    return SpecError(f"{entry.where}: {option.name} is {shown_value}; expected {expected}.{near}")


def _hint(name: str, names: Iterable[str]) -> str:
    return did_you_mean(name, names, cutoff=0.85).strip()


def _setting(option: Option, entry: Entry | None, value: Any, implied: Implied, side: LaunchSide) -> LaunchSetting:
    """An option in words; the profile it stands for is told where its side has it."""
    stands_for = implied.overlay or implied.profile or ""
    shown_value = json.dumps(value) if isinstance(value, bool | Mapping) else str(value)
    return LaunchSetting(
        role=option.role,
        name=option.name,
        given=entry is not None,
        value=shown_value,
        implies=implied.says,
        profile=stands_for if stands_for in {*_parts(side.profile), *side.further} else "",
        where=str(entry.where) if entry is not None else "default",
    )


def _side(role: str, start: str, effects: Iterable[Implied]) -> LaunchSide:
    """One side: its profile, what comes on top, and where it lies."""
    profile, overlays, placement, dtype = start, [], dict[str, int | bool](), None
    for effect in effects:
        profile = profile if effect.profile is None else effect.profile
        overlays += [effect.overlay] if effect.overlay else []
        placement |= {k: v for k, v in effect.placement.items() if v is True or v > 1}
        dtype = effect.dtype or dtype
    if placement.get("expert") is True:
        # vLLM's experts lie on all ranks of the tensor-parallel group.
        placement["expert"] = placement.get("tensor", 1)
    profile, overlays = _together(profile, overlays)
    return LaunchSide(
        role=role,
        profile=profile,
        further=tuple(overlays),
        placement={name: ranks for name, ranks in placement.items() if ranks != 1},
        dtype=dtype,
    )


def _together(profile: str, overlays: list[str]) -> tuple[str, list[str]]:
    """The one profile that says most, and the overlays that it does not hold."""
    if profile == NO_PROFILE:
        return profile, []
    base = _chain(profile)
    apply = []
    overlays = [overlay for overlay in dict.fromkeys(overlays) if overlay not in {_UNCOMPILED.get(o) for o in overlays}]
    for overlay in overlays:
        if (profile, overlay) in _TOGETHER:
            profile = _TOGETHER[profile, overlay]
        elif (profile, overlay) not in _OFF and (_chain(overlay)[1] in base or overlay.startswith("deepep")):
            apply.append(overlay)
    if len(base) == 1 and apply and _chain(apply[0])[1] == profile:
        profile = apply.pop(0)
    return profile, apply


def _parts(profile: str) -> list[str]:
    """A profile, what it extends, and the two it is made of."""
    made_of = [part for parts, whole in _TOGETHER.items() if whole == profile for part in parts]
    return [*_chain(profile), *made_of]


def _chain(name: str) -> list[str]:
    """A profile and what it extends, itself first."""
    if name == NO_PROFILE:
        return []
    names = [name]
    while (base := reader.read_profile(reader.shipped("profiles")[names[-1]]).extends) is not None:
        names.append(base)
    return names
