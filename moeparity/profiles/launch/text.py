"""What a launch configuration implies, for the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from moeparity.profiles.launch.report import Launch, LaunchSetting


def print_launch(launch: Launch, out: Console) -> None:
    """The profiles it implies, then every option, set or not, then what was not looked at."""
    out.print(Text(f"{launch.file}: {launch.engine}", style="bold"))
    out.print(f"options and defaults of {launch.engine} {launch.version}, read from {launch.source}\n")
    for side in launch.sides:
        out.print(Text.assemble((side.role, "bold"), f"  {side.variant}"))
        for overlay in side.further:
            out.print(f"  and on top of it what `moeparity engines {overlay}` lists; a recipe takes it into `set:`")
    for setting in launch.settings:
        if setting.value.startswith("unresolved: "):
            out.print(
                Text(f"unresolved  {setting.name}: {setting.value.removeprefix('unresolved: ')} ({setting.where})")
            )
    for note in launch.notes:
        out.print(Text(f"note  {note.says} ({note.where})"))
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("option", "value", "what it implies", "profile", "where"):
        table.add_column(column, overflow="fold")
    for setting in launch.settings:
        table.add_row(*_row(setting), style="bold" if setting.given else "")
    out.print()
    out.print(table)
    if launch.ignored:
        names = ", ".join(f"{i.name} ({i.where}{', ' + i.hint if i.hint else ''})" for i in launch.ignored)
        out.print(f"\nNot looked at: {names}.")


def _row(setting: LaunchSetting) -> tuple[str, ...]:
    where = setting.where if setting.given else "not set: the default"
    return setting.name, setting.value, setting.implies, setting.profile, where
