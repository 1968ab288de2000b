"""The one kind of table a report has."""

from __future__ import annotations

from rich.table import Table


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
