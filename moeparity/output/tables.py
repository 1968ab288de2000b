"""The one kind of table a report has, and its one kind of list."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TypeVar

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Column, Table
from rich.text import Text

COLOUR = {"pass": "bold green", "fail": "bold red", "inconclusive": "bold yellow"}
"""Styles of the verdicts."""
MOST_ROWS = 24
"""Rows of a table over layers."""
PEAKS = 4
"""Layers that a long table shows whatever else it leaves out: the greatest jumps, or the most flips."""
Row = TypeVar("Row")

_GAP = 2
_NAMES = 16
"""Columns of a terminal that names keep at least, where they are to wrap."""


class PlainTable(Table):
    """A table that keeps numbers whole where a terminal is narrow: it wraps headers, then leaves out the `optional`."""

    optional: tuple[str, ...] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """As a Table, in the width there is."""
        if sum(map(_whole, self.columns)) > options.max_width:
            for column in self.columns:
                column.no_wrap = False
                column.width = _least(column) - _GAP if column.overflow != "fold" else None
            for header in self.optional:
                if sum(map(_least, self.columns)) > options.max_width:
                    self.columns = [column for column in self.columns if column.header != header]
        yield from super().__rich_console__(console, options)


def _whole(column: Column) -> int:
    return _GAP + max(cell_len(str(cell)) for cell in (column.header, *column.cells))


def _least(column: Column) -> int:
    """The width of the longest cell and the longest word of the header; of names, what is left to them."""
    if column.overflow == "fold":
        return _GAP + min(_NAMES, _whole(column))
    words = str(column.header).split() or [""]
    return _GAP + max(cell_len(str(text)) for text in (*words, *column.cells))


def plain_table(
    *columns: str, names: str | None = None, names_first: bool = False, optional: tuple[str, ...] = ()
) -> PlainTable:
    """A plain table of numbers, which never wrap, and at most one column of names, which may.

    `optional` are columns of numbers that a narrow terminal goes without, the first one first.
    """
    table = PlainTable(box=None, padding=(0, _GAP, 0, 0), header_style="dim")
    table.optional = optional
    if names and names_first:
        table.add_column(names, overflow="fold")
    for column in columns:
        table.add_column(column, no_wrap=True)
    if names and not names_first:
        table.add_column(names, overflow="fold")
    return table


def plain_grid(columns: int, gap: int = _GAP) -> Table:
    """Columns of words without headers; a word that does not fit is folded, not cut."""
    table = Table.grid(padding=(0, gap, 0, 0))
    for _ in range(columns):
        table.add_column(overflow="fold")
    return table


def bullets(sentences: Iterable[str]) -> Table:
    """Sentences, each behind a dash; what does not fit on a line goes on under its first word."""
    table = plain_grid(2, gap=1)
    for sentence in sentences:
        table.add_row("-", Text(sentence))
    return table


def thinned(rows: Sequence[Row], peaks: Collection[int]) -> tuple[list[Row], list[Text]]:
    """Some of many layers, the first, the last and the `peaks` among them, and a note that says so."""
    if len(rows) <= MOST_ROWS:
        return list(rows), []
    count = MOST_ROWS - len(peaks)
    step = (len(rows) - 1) / (count - 1)
    indices = sorted({round(i * step) for i in range(count)} | set(peaks))
    note = Text(f"{len(indices)} of {len(rows)} rows; all of them are in --json.", style="dim")
    return [rows[i] for i in indices], [note]
