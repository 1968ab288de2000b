"""What a launch configuration implies, for the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from moeparity.output.tables import word_table
from moeparity.profiles.launch.report import Launch, LaunchSetting, LaunchWarning


def print_launch(launch: Launch, out: Console) -> None:
    """What no profile states, the profiles implied, what the engine decides, every option, what was not looked at."""
    out.print(Text(f"{launch.file}: {launch.engine}", style="bold"))
    if launch.warnings:
        _print_warnings(launch, out)
    out.print(Text(f"options and defaults of {launch.engine} {launch.version}, read from {launch.source}"))
    out.print(Text(f"model: {_model(launch)}\n"))
    for side in launch.sides:
        out.print(Text.assemble((side.role, "bold"), f"  {side.variant}"))
        for overlay in side.further:
            out.print(f"  and on top of it what `moeparity engines {overlay}` lists; a recipe takes it into `set:`")
        for key, value in side.sets.items():
            out.print(f"  and {key} {value}")
    for decision in launch.decisions:
        out.print(Text(f"{decision.role}: {decision.says} [{decision.source}]"))
    for setting in launch.settings:
        if setting.value.startswith("unresolved: "):
            out.print(
                Text(f"unresolved  {setting.name}: {setting.value.removeprefix('unresolved: ')} ({setting.where})")
            )
    for note in launch.notes:
        out.print(Text(f"note  {note.says} ({note.where})"))
    out.print()
    out.print(_table(launch))
    if launch.unstated:
        out.print(Text(f"\nNot stated by any profile, and done unless switched off: {'; '.join(launch.unstated)}."))
    if launch.irrelevant:
        names = ", ".join(dict.fromkeys(key.name for key in launch.irrelevant))
        out.print(Text(f"\nKnown to change no log-probability: {names}."))
    if launch.ignored:
        names = ", ".join(f"{i.name} ({i.where}{', ' + i.hint if i.hint else ''})" for i in launch.ignored)
        out.print(Text(f"\nNot looked at: {names}."))


def warning_line(warning: LaunchWarning) -> str:
    """One warning in a line: which option, what it changes, and where it stands."""
    name = f"{warning.name} {warning.value}" if warning.name else warning.value
    return f"{warning.role}: {name}: {warning.says} ({warning.where})"


def _print_warnings(launch: Launch, out: Console) -> None:
    count = len(launch.warnings)
    things = "thing decides" if count == 1 else "things decide"
    out.print(
        Text(f"WARNING: {count} {things} numerics and no profile has it; nothing is put in its place:", style="bold")
    )
    for warning in launch.warnings:
        out.print(Text(f"  {warning_line(warning)}"))
    out.print()


def _model(launch: Launch) -> str:
    model = launch.model
    if model.architecture is None:
        return f"{model.name + ': ' if model.name else ''}architecture not known ({model.known_by})"
    return f"{model.name}: {model.architecture} (by {model.known_by})"


def _table(launch: Launch) -> Table:
    table = word_table("option", "value", "what it implies", "profile", "where")
    for setting in launch.settings:
        table.add_row(*_row(setting, str(launch.file)), style="bold" if setting.given else "")
    return table


def _row(setting: LaunchSetting, file: str) -> tuple[str, ...]:
    """Of the launch file itself, which stands at the top, the line is enough."""
    setting_file, _, line = setting.where.rpartition(":")
    where = f"line {line}" if setting_file == file and line.isdigit() else setting.where
    return setting.name, setting.value, setting.implies, setting.profile, where if setting.given else "default"
