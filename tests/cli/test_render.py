"""What is printed stands there as it was written."""

from __future__ import annotations

import io

import pytest
from rich.table import Table

from moeparity.cli import render

WORDS = "op combine:leaves: expert -> slot, [bold]layers[*][/bold] :warning:"


@pytest.mark.parametrize("terminal", [True, False])
def test_names_are_no_emoji_and_no_markup(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: terminal)
    monkeypatch.setattr("sys.stdout", stream)
    monkeypatch.setenv("COLUMNS", "120")
    table = Table(WORDS)
    table.add_row(WORDS)
    out = render.console()
    out.print(WORDS)
    out.print(table)
    assert stream.getvalue().count(WORDS) == 3
