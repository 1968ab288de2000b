"""The layout of `--help` (commands in panels, options in sections), and the message for an unknown command."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import groupby
from typing import Any

import typer
import typer.core

from moeparity.errors import did_you_mean

EVERYDAY, PROGRAMS, CLOSER = "Everyday", "Evidence of real programs", "A closer look"
"""The panels of `moeparity --help`, in this order."""

FILES, RUNNING = "Files it writes", "How it runs"
"""Sections of options that many commands share."""

_WIDEST_TERM = 30
_NO_CHOICE = re.compile(r"(?:Value error, )?'(.*)' is not one of ('.*')\.")


class Command(typer.core.TyperCommand):
    """A command whose options are printed in sections."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments and options, those without a section first."""
        _write_parameters(self, ctx, formatter)


class Group(typer.core.TyperGroup):
    """Commands, printed in the panels under which they are registered. For an unknown command the nearest one is
    suggested.
    """

    def invoke(self, ctx: Any) -> Any:
        """Run the requested command."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            if mistyped := _NO_CHOICE.fullmatch(error.message):
                word, choices = mistyped[1], mistyped[2]
                near = did_you_mean(word, re.findall("'([^']+)'", choices))
                error.message = f"{word!r}: expected one of {choices}.{near}"
            raise

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options, then the commands."""
        _write_parameters(self, ctx, formatter)
        self.format_commands(ctx, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write each command with its description, all panels in columns of the same width."""
        commands = [(name, command) for name in self.list_commands(ctx) if (command := self.get_command(ctx, name))]
        width = max(len(name) for name, _ in commands)
        for panel, members in groupby(commands, key=lambda item: getattr(item[1], "rich_help_panel", None)):
            rows = [
                (name.ljust(width), command.get_short_help_str(formatter.width - 6 - width))
                for name, command in members
            ]
            _write_section(formatter, panel or "Commands", rows)


def _write_parameters(command: Any, ctx: Any, formatter: Any) -> None:
    arguments: list[tuple[str, str]] = []
    options: dict[str, list[tuple[str, str]]] = {"Options": []}
    for parameter in command.get_params(ctx):
        record = parameter.get_help_record(ctx)
        if record is None:
            continue
        if parameter.param_type_name == "argument":
            arguments.append(record)
        else:
            options.setdefault(getattr(parameter, "rich_help_panel", None) or "Options", []).append(record)
    options["Options"].sort(key=lambda record: record[0] == "--help")
    last = [title for title in (FILES, RUNNING) if title in options]
    _write_section(formatter, "Arguments", arguments)
    for title in [title for title in options if title not in last] + last:
        _write_section(formatter, title, options[title])


def _write_section(formatter: Any, title: str, rows: Iterable[tuple[str, str]]) -> None:
    if rows := list(rows):
        with formatter.section(title):
            formatter.write_dl(rows, col_max=_WIDEST_TERM)
