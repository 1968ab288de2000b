"""What a launch configuration implies."""

from __future__ import annotations

from collections.abc import Iterator

from moeparity.output.blocks import Block, Column, Phrase, Row, Styled, Table, lines, table
from moeparity.output.words import ends
from moeparity.profiles.launch.report import Launch, LaunchSetting, LaunchWarning

_LONGEST = 200
_TITLES = ("option", "value", "what it implies", "profile", "where")
TOGETHER = (
    "Says which tokens are computed together, by which kernels and splits are chosen; a recipe says it by "
    "`micro_batch` and `schedule`"
)


def blocks(launch: Launch) -> Iterator[Block]:
    """What no profile states, the profiles implied, what the engine decides, every option, what was not looked at."""
    whose = f", {launch.basis}" if launch.resolved_by else ""
    yield lines(Styled(f"{launch.file}: {launch.engine}{whose}", "bold"))
    if launch.warnings:
        yield lines(*_warnings(launch), "")
    read_from = f"options and defaults of {launch.engine} {launch.version}, read from {launch.source}"
    yield lines(read_from, f"model: {_model(launch)}", "")
    yield lines(*_decided(launch), "")
    yield _table(launch)
    sentences = list(_rest(launch))
    if sentences:
        yield lines(*(part for sentence in sentences for part in ("", sentence)))


def _decided(launch: Launch) -> Iterator[Phrase]:
    for side in launch.sides:
        yield (Styled(side.role, "bold"), f"  {side.variant}")
        for overlay in side.further:
            yield f"  and on top of it what `moeparity show engines {overlay}` lists; a recipe takes it into `set:`"
        for key, value in side.sets.items():
            yield f"  and {key} {value}"
    for decision in launch.decisions:
        yield f"{decision.role}: {decision.says} [{decision.source}]"
    for setting in launch.settings:
        if setting.value.startswith("unresolved: "):
            yield f"unresolved  {setting.name}: {setting.value.removeprefix('unresolved: ')} ({setting.where})"
    for note in launch.notes:
        yield f"note  {note.says} ({note.where})"


def _rest(launch: Launch) -> Iterator[str]:
    """What is not stated, what changes nothing, what goes together, what was not looked at."""
    if launch.unstated:
        yield f"Not stated by any profile, and done unless switched off: {'; '.join(launch.unstated)}."
    if launch.irrelevant:
        names = ", ".join(dict.fromkeys(key.name for key in launch.irrelevant))
        yield f"Known to change no log-probability: {names}."
    if launch.together:
        names = ", ".join(dict.fromkeys(key.name for key in launch.together))
        yield f"{TOGETHER}: {names}."
    if launch.ignored:
        names = ", ".join(f"{i.name} ({i.where}{', ' + i.hint if i.hint else ''})" for i in launch.ignored)
        yield f"Not looked at: {names}."


def warning_line(warning: LaunchWarning) -> str:
    """One warning in a line: which option, what it changes, and where it stands. Of a long value only both ends."""
    value = ends(warning.value, _LONGEST)
    name = f"{warning.name} {value}" if warning.name else value
    return f"{warning.role}: {name}: {warning.says} ({warning.where})"


def _warnings(launch: Launch) -> Iterator[Phrase]:
    count = len(launch.warnings)
    things = "thing decides" if count == 1 else "things decide"
    yield Styled(f"WARNING: {count} {things} numerics and no profile has it; nothing is put in its place:", "bold")
    yield from (f"  {warning_line(warning)}" for warning in launch.warnings)


def _model(launch: Launch) -> str:
    model = launch.model
    if model.architecture is None:
        return f"{model.name + ': ' if model.name else ''}architecture not known ({model.known_by})"
    return f"{model.name}: {model.architecture} (by {model.known_by})"


def _table(launch: Launch) -> Table:
    rows = [Row(_row(setting, str(launch.file)), style="bold" if setting.given else "") for setting in launch.settings]
    return table([Column(title, "name") for title in _TITLES], rows)


def _row(setting: LaunchSetting, file: str) -> tuple[str, ...]:
    """Of the launch file itself, which stands at the top, the line is enough."""
    setting_file, _, line = setting.where.rpartition(":")
    where = f"line {line}" if setting_file == file and line.isdigit() else setting.where
    where = where if setting.given else setting.where.replace(f"{file}:", "line ")
    return setting.name, setting.value, setting.implies, setting.profile, where
