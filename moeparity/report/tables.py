"""The one kind of table a report has, and its one kind of list."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table
from rich.text import Text


def plain_table(*columns: str, names: str | None = None, names_first: bool = False) -> Table:
    """A plain table of numbers, which never wrap, and at most one column of names, which may."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    if names and names_first:
        table.add_column(names, overflow="fold")
    for column in columns:
        table.add_column(column, no_wrap=True)
    if names and not names_first:
        table.add_column(names, overflow="fold")
    return table


def bullets(sentences: Iterable[str]) -> Table:
    """Sentences, each behind a dash; what does not fit on a line goes on under its first word."""
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column()
    table.add_column(overflow="fold")
    for sentence in sentences:
        table.add_row("-", Text(sentence))
    return table
