"""A launch configuration -> which profiles and placements it implies, with every option that is left unset."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from moeparity.errors import SpecError, Where, did_you_mean
from moeparity.profiles.launch.architecture import Model, model_of, of_config, of_last_part
from moeparity.profiles.launch.configuration import Configuration, Values
from moeparity.profiles.launch.file_warnings import of_file
from moeparity.profiles.launch.knowledge import groups_tokens
from moeparity.profiles.launch.options import Decision, Implied, ImpossibleError, LaunchSettings, Option, Program
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
from moeparity.profiles.launch.source import Entry, Hardware, Installed, Null, Source, Unresolved
from moeparity.profiles.launch.values import value_of
from moeparity.profiles.launch.variables import with_variables
from moeparity.profiles.launch.vllm_releases import released


def read(path: Path, checkpoint: Path | None = None) -> Launch:
    """What a launch configuration implies. Raises SpecError with file and line.

    If `checkpoint` is given, a folder with a config.json, the model is its model; otherwise it is the model that the
    file names.
    """
    return joined([launch(configuration) for configuration in configurations(path, checkpoint)])


def configurations(path: Path, checkpoint: Path | None = None, further: Further | None = None) -> list[Configuration]:
    """The programs that a file starts, one of each kind, each with what is stated of its options and of `further` ones.
    Raises SpecError.
    """
    return [_configuration(source, program, checkpoint, further) for source, program in programs_of(path)]


def _configuration(source: Source, program: Program, checkpoint: Path | None, further: Further | None) -> Configuration:
    source = with_variables(source, program)
    program = released(source, program)
    if further is not None:
        program = replace(program, options=(*program.options, *further(program.name)))
    return Configuration(source=source, program=program, checkpoint=checkpoint, stated=_sorted(source, program)[0])


def launch(configuration: Configuration) -> Launch:
    """What a configuration implies. Raises SpecError with file and line."""
    source, program, checkpoint = configuration.source, configuration.program, configuration.checkpoint
    values = configuration.stated
    _, irrelevant, together, ignored = _sorted(source, program)
    model_said = _model(source, program)
    model = model_said if checkpoint is None else of_config(checkpoint / "config.json", str(checkpoint))
    settings = [(option, *values.get(option.name, (None, option.default))) for option in program.options]
    resolved = LaunchSettings(
        values={option.name: value for option, _, value in settings}, stated=frozenset(values), model=model
    )
    inactive = program.inactive(resolved)
    implied = [_implied(option, value, inactive, resolved) for option, _, value in settings]
    decisions = _decisions(source, program, resolved, values)
    sides = _sides(program, resolved, list(zip(settings, implied, strict=True)), decisions)
    unread = next((note.where for note in source.notes if note.opens == "options"), None)
    shown_settings = [
        _setting(option, entry, value, i, sides[option.role], unread)
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
        warnings=(*of_file(source, program, sides), *_warnings(settings, implied), *_of_decisions(decisions)),
        another_model=_another_model(source, model_said, model) if checkpoint else "",
        sides=tuple(sides.values()),
        decisions=tuple(
            LaunchDecision(role=d.role, says=d.implied.says, source=d.source) for d in decisions if d.implied.says
        ),
        settings=tuple(shown_settings),
        unstated=_unstated_defaults(settings, implied),
        irrelevant=(*irrelevant, *without_effect),
        together=together,
        ignored=ignored,
        notes=tuple(
            LaunchNote(says=note.says, where=str(note.where))
            for note in source.notes
            if not isinstance(note, Installed | Hardware)
        ),
        resolved_by=source.resolved_by,
    )


def _sides(
    program: Program,
    resolved: LaunchSettings,
    implied: Sequence[tuple[Setting, Implied]],
    decisions: Sequence[Decision],
) -> dict[str, LaunchSide]:
    """The sides that a program has, by their roles."""
    engine = f"{program.engine} {program.version}"
    origins = {
        option.name: f"{engine}'s default of {option.name}" if entry is None else f"{entry.where}: {option.name}"
        for (option, entry, _), _ in implied
    }
    sides = {
        role: side(
            role,
            start,
            [(says, origins[option.name]) for (option, _, _), says in implied if option.role == role],
            [(d.implied, origins.get(d.source, d.source)) for d in decisions if d.role == role],
        )
        for role, start in program.start.items()
    }
    for role, (mirrored, settings) in program.mirrors(resolved).items():
        if settings is resolved:
            sides[role] = replace(sides[mirrored], role=role)
            continue
        inactive = program.inactive(settings)
        says = [
            (_implied(option, settings[option.name], inactive, settings), origins[option.name])
            for option in program.options
            if option.role == mirrored
        ]
        of_role = [(d.implied, origins.get(d.source, d.source)) for d in decisions if d.role == role]
        sides[role] = side(role, program.start[mirrored], says, of_role)
    return sides


Further = Callable[[str], tuple[Option, ...]]
"""Options of a program, by its name, that are read besides its own."""
Setting = tuple[Option, Entry | None, Any]


Keys = tuple[IgnoredKey, ...]


def _sorted(source: Source, program: Program) -> tuple[Values, Keys, Keys, Keys]:
    """The options that are known, those that change nothing, those that group tokens, and keys not looked at."""
    options = {name: option for option in program.options for name in option.names}
    values: dict[str, tuple[Entry, Any]] = {}
    irrelevant, together, ignored = list[IgnoredKey](), list[IgnoredKey](), list[IgnoredKey]()
    for entry in (*source.options, *source.environment):
        option = options.get(entry.name) or next(
            (options[head] for head in _heads(entry.name) if head in options), None
        )
        negated = options.get(entry.name.removeprefix("no_")) if entry.name.startswith("no_") else None
        if option is not None and option.environment == (entry in source.environment):
            if not isinstance(entry.value, Null) or option.null or option.kind == "flag":
                values[option.name] = entry, value_of(option, entry)
        elif negated is not None and negated.kind in ("flag", "any"):
            values[negated.name] = entry, False
        elif entry.name in program.gone and source.command:
            hint = f"{program.engine} {program.version} refuses it, and has {program.gone[entry.name]} in its place"
            ignored.append(IgnoredKey(name=entry.name, where=str(entry.where), hint=hint))
        elif entry.name in program.model or _irrelevant(entry.name, program):
            if not isinstance(entry.value, Mapping | Null):
                hint = "it names the model" if entry.name in program.model else ""
                keys = together if groups_tokens(entry.name) else irrelevant
                keys.append(IgnoredKey(name=entry.name, where=str(entry.where), hint=hint))
        elif not isinstance(entry.value, Mapping | Null) and not _inside(entry.name, values):
            ignored.append(IgnoredKey(name=entry.name, where=str(entry.where), hint=_hint(entry.name, options)))
    return _opened(source, program) | values, tuple(irrelevant), tuple(together), tuple(ignored)


def _opened(source: Source, program: Program) -> dict[str, tuple[Entry, Any]]:
    """The environment variables that decide, where something sets variables that cannot be read."""
    note = next((note for note in source.notes if note.opens == "environment"), None)
    # Those of a trainer's rollout are shown only where they are set.
    names = [
        option.name
        for option in program.options
        if option.environment and option.kind != "any" and option.default != ""
    ]
    if note is None:
        return {}
    value = Unresolved(f"perhaps set by {note.says.partition(' is ')[0].partition(' sets ')[0]}")
    return {name: (Entry(name=name, value=value, where=note.where), value) for name in names}


def _decisions(source: Source, program: Program, resolved: LaunchSettings, values: Values) -> list[Decision]:
    """What the engine decides. Raises SpecError for options that it refuses together."""
    try:
        return [*_decided(program, resolved)]
    except ImpossibleError as impossible:
        where = values[impossible.option][0].where if impossible.option in values else Where(source.path)
        raise SpecError(f"{where}: {impossible}") from None


def _decided(program: Program, resolved: LaunchSettings) -> Iterator[Decision]:
    """Those of every side; of one that is another side with other settings by these."""
    yield from (decision for rule in program.rules for decision in rule(resolved))
    for role, (mirrored, settings) in program.mirrors(resolved).items():
        if settings is not resolved:
            of_mirrored = (d for rule in program.rules for d in rule(settings) if d.role == mirrored)
            yield from (replace(decision, role=role) for decision in of_mirrored)


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
        return of_last_part(model_name.text)
    return model_of(None if model_name is None else str(model_name), source.path.parent)


def _warnings(settings: Sequence[Setting], implied: Sequence[Implied]) -> tuple[LaunchWarning, ...]:
    """Options that are set and decide what no profile states."""
    return tuple(
        LaunchWarning(
            role=option.role,
            name=option.name,
            value=_shown(value),
            where=str(entry.where),
            says=i.warns,
            covered_by=i.covered_by,
        )
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


def _implied(option: Option, value: Any, inactive: Mapping[str, str], settings: LaunchSettings) -> Implied:
    reason = settings.idle(option.concerns)
    if reason:
        return Implied(says=f"no effect: {reason}", shows=False)
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


def _hint(name: str, names: Iterable[str]) -> str:
    above, _, last = name.rpartition(".")
    beside = {option.rpartition(".")[2]: option for option in names if option.rpartition(".")[0] == above}
    near = did_you_mean(last, beside, cutoff=0.85).strip()
    return next((near.replace(repr(part), repr(option)) for part, option in beside.items() if repr(part) in near), "")


def _setting(
    option: Option, entry: Entry | None, value: Any, implied: Implied, whose: LaunchSide, unread: Where | None
) -> LaunchSetting:
    """An option in words. The profile for which it stands is named if the side of the option has that profile.

    `unread` is the place of something that may set options and was not read.
    """
    unset = "default" if unread is None else f"default, unless set at {unread}"
    stands_for = implied.overlay or implied.profile or ""
    return LaunchSetting(
        role=option.role,
        name=option.name,
        given=entry is not None,
        value=_shown(value),
        implies=implied.says,
        profile=stands_for if stands_for in {*parts(whose.profile), *whose.further} else "",
        where=str(entry.where) if entry is not None else unset,
    )


def _shown(value: Any) -> str:
    if value is None:
        return "set"
    return json.dumps(value, default=str) if isinstance(value, bool | Mapping | list) else str(value)
