"""A launch configuration -> which profiles and placements it implies, with every option that is left unset."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from moeparity.errors import SpecError, Where, did_you_mean, listed, shown, whole_number
from moeparity.profiles.launch.architecture import Model, model_of, of_config
from moeparity.profiles.launch.options import Decision, Implied, ImpossibleError, Option, Program, Settings
from moeparity.profiles.launch.programs import programs_of
from moeparity.profiles.launch.report import (
    IgnoredKey,
    Launch,
    LaunchDecision,
    LaunchModel,
    LaunchNote,
    LaunchSetting,
    LaunchSide,
    LaunchWarning,
    joined,
)
from moeparity.profiles.launch.same_model import difference
from moeparity.profiles.launch.sides import parts, side
from moeparity.profiles.launch.source import FALSE, TRUE, Entry, Source, Unresolved

_TOO_LARGE = 2.0**128
"""For fp32."""
_UNSET = (None, "none", "None", "null")


def read(path: Path, checkpoint: Path | None = None) -> Launch:
    """What a launch configuration implies. Raises SpecError with file and line.

    The model is that of `checkpoint`, a folder with a config.json, where it is given, else the one the file names.
    """
    return joined([_launch(source, program, checkpoint) for source, program in programs_of(path)])


def _launch(source: Source, program: Program, checkpoint: Path | None) -> Launch:
    values, irrelevant, ignored = _sorted(source, program)
    model_said = _model(source, program)
    model = model_said if checkpoint is None else of_config(checkpoint / "config.json", str(checkpoint))
    settings = [(option, *values.get(option.name, (None, option.default))) for option in program.options]
    resolved = Settings(
        values={option.name: value for option, _, value in settings}, stated=frozenset(values), model=model
    )
    inactive = program.inactive(resolved)
    implied = [_implied(option, value, inactive) for option, _, value in settings]
    decisions = _decisions(source, program, resolved, values)
    sides = {
        role: side(
            role,
            start,
            [i for (o, *_), i in zip(settings, implied, strict=True) if o.role == role],
            [decision.implied for decision in decisions if decision.role == role],
        )
        for role, start in program.start.items()
    }
    shown_settings = [
        _setting(option, entry, value, i, sides[option.role])
        for (option, entry, value), i in zip(settings, implied, strict=True)
        if (i.shows if entry is None or option.quiet else True) and not (option.quiet and entry is None)
    ]
    without_effect = [
        IgnoredKey(name=option.name, where=str(entry.where), hint=i.says)
        for (option, entry, _), i in zip(settings, implied, strict=True)
        if entry is not None and option.quiet and not i.shows
    ]
    return Launch(
        file=str(Where(source.path)),
        engine=program.engine,
        version=program.version,
        source=program.source,
        model=LaunchModel(name=model.name, architecture=model.architecture, known_by=model.known_by),
        warnings=(*_warnings(settings, implied), *_of_decisions(decisions)),
        another_model=_another_model(source, model_said, model) if checkpoint else "",
        sides=tuple(sides.values()),
        decisions=tuple(
            LaunchDecision(role=d.role, says=d.implied.says, source=d.source) for d in decisions if d.implied.says
        ),
        settings=tuple(shown_settings),
        unstated=_unstated_defaults(settings, implied),
        irrelevant=(*irrelevant, *without_effect),
        ignored=ignored,
        notes=tuple(LaunchNote(says=note.says, where=str(note.where)) for note in source.notes),
    )


Values = Mapping[str, tuple[Entry, Any]]
"""By an option's own name: where it stands, and its value."""
Setting = tuple[Option, Entry | None, Any]


def _sorted(source: Source, program: Program) -> tuple[Values, tuple[IgnoredKey, ...], tuple[IgnoredKey, ...]]:
    """The options that are known, those that change nothing, and the keys that were not looked at."""
    options = {name: option for option in program.options for name in option.names}
    values: dict[str, tuple[Entry, Any]] = {}
    irrelevant, ignored = list[IgnoredKey](), list[IgnoredKey]()
    for entry in (*source.options, *source.environment):
        if entry.value is None and not source.command:
            continue  # A null in a mapping: as if it were not there.
        option = options.get(entry.name) or next(
            (options[head] for head in _heads(entry.name) if head in options), None
        )
        negated = options.get(entry.name.removeprefix("no_")) if entry.name.startswith("no_") else None
        if option is not None and option.environment == (entry in source.environment):
            values[option.name] = entry, _value(option, entry)
        elif negated is not None and negated.kind in ("flag", "any"):
            values[negated.name] = entry, False
        elif _irrelevant(entry.name, program):
            if not isinstance(entry.value, Mapping):
                hint = "it names the model" if entry.name in program.model else ""
                irrelevant.append(IgnoredKey(name=entry.name, where=str(entry.where), hint=hint))
        elif not isinstance(entry.value, Mapping) and not _inside(entry.name, values):
            ignored.append(IgnoredKey(name=entry.name, where=str(entry.where), hint=_hint(entry.name, options)))
    return values, tuple(irrelevant), tuple(ignored)


def _decisions(source: Source, program: Program, resolved: Settings, values: Values) -> list[Decision]:
    """What the engine decides. Raises SpecError for options that it refuses together."""
    try:
        return [decision for rule in program.rules for decision in rule(resolved)]
    except ImpossibleError as impossible:
        where = values[impossible.option][0].where if impossible.option in values else Where(source.path)
        raise SpecError(f"{where}: {impossible}") from None


def _irrelevant(name: str, program: Program) -> bool:
    """Whether an option is known to change nothing: itself, or all below one that ends in a dot."""
    names = {name, name.removeprefix("no_"), f"{name}.", *_heads(name)}
    return bool(names & program.irrelevant)


def _heads(name: str) -> list[str]:
    """The beginnings of a dotted name, each with its dot."""
    words = name.split(".")
    return [".".join(words[:end]) + "." for end in range(1, len(words))]


def _another_model(source: Source, model_said: Model, model_here: Model) -> str:
    """That the file names a model which plainly is not the checkpoint's; empty where it is not known to."""
    differs = difference(model_said, model_here)
    return f"{Where(source.path)} runs {model_said.name}: {differs} ({model_here.known_by})" if differs else ""


def _model(source: Source, program: Program) -> Model:
    """The model that the file names: by an option, or by the word behind `serve`."""
    entries = {entry.name: entry.value for entry in (*source.options, *source.environment)}
    model_name = next((entries[key] for key in program.model if entries.get(key)), None)
    if source.model is not None:
        model_name = source.model.value
    if isinstance(model_name, Unresolved):
        return Model(name="", architecture=None, known_by=f"its name is {model_name}")
    return model_of(None if model_name is None else str(model_name), source.path.parent)


def _warnings(settings: Sequence[Setting], implied: Sequence[Implied]) -> tuple[LaunchWarning, ...]:
    """Options that are set and decide what no profile states."""
    return tuple(
        LaunchWarning(role=option.role, name=option.name, value=_shown(value), where=str(entry.where), says=i.warns)
        for (option, entry, value), i in zip(settings, implied, strict=True)
        if entry is not None and i.warns
    )


def _of_decisions(decisions: Sequence[Decision]) -> tuple[LaunchWarning, ...]:
    return tuple(
        LaunchWarning(role=d.role, name="", value=d.implied.says, where=d.source, says=d.implied.warns)
        for d in decisions
        if d.implied.warns
    )


def _unstated_defaults(settings: Sequence[Setting], implied: Sequence[Implied]) -> tuple[str, ...]:
    """What an engine does unless it is told not to, and no profile states."""
    rows = zip(settings, implied, strict=True)
    return tuple(f"{option.name}: {i.warns}" for (option, entry, _), i in rows if entry is None and i.warns)


def _implied(option: Option, value: Any, inactive: Mapping[str, str]) -> Implied:
    for beginning, reason in inactive.items():
        if option.name.startswith(beginning):
            return Implied(says=f"no effect: {reason}", shows=False)
    implied = option.implies(value) if option.kind == "any" else None
    if implied is not None and not implied.warns:
        return implied
    if isinstance(value, Unresolved):
        says = "not resolved: what it decides is not known"
        return Implied(says=says, warns=says)
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
        number = whole_number(value) if isinstance(value, str) else value
        if isinstance(number, int) and not isinstance(number, bool) and number >= 1:
            return number
        raise _mismatch(option, entry, "a whole number from 1")
    if option.kind == "number":
        return _number(option, entry)
    if option.kind == "mapping":
        return _mapping(option, entry)
    if option.kind == "any":
        return value
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


def _setting(option: Option, entry: Entry | None, value: Any, implied: Implied, whose: LaunchSide) -> LaunchSetting:
    """An option in words; the profile it stands for is told where its side has it."""
    stands_for = implied.overlay or implied.profile or ""
    return LaunchSetting(
        role=option.role,
        name=option.name,
        given=entry is not None,
        value=_shown(value),
        implies=implied.says,
        profile=stands_for if stands_for in {*parts(whose.profile), *whose.further} else "",
        where=str(entry.where) if entry is not None else "default",
    )


def _shown(value: Any) -> str:
    if value is None:
        return "set"
    return json.dumps(value, default=str) if isinstance(value, bool | Mapping | list) else str(value)
