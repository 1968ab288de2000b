"""The kinds of table that reports have, their one kind of list, and words that no line breaks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from moeparity.output.words import fitted

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.containers import Lines

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


class Words(Text):
    """A text that breaks between words: one too long for a line is broken behind its dots, colons and the like, and of
    a path the middle is left out.
    """

    def wrap(self, console: Console, width: int, **options: Any) -> Lines:
        """The lines at this width."""
        text = fitted(self.plain, width)
        return Text.wrap(self if text == self.plain else Text(text, self.style), console, width, **options)


class WordTable(Table):
    """A table whose cells are `Words`."""

    def add_row(self, *cells: RenderableType | None, **options: Any) -> None:
        """Add a row."""
        super().add_row(*(Words(cell) if isinstance(cell, str) else cell for cell in cells), **options)


class PlainTable(WordTable):
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
    return _GAP + max(_longest_line(cell) for cell in (column.header, *column.cells))


def _longest_line(cell: object) -> int:
    return max((cell_len(line) for line in str(cell).split("\n")), default=0)


def _least(column: Column) -> int:
    """The width of the longest cell and the longest word of the header; of names, what is left to them."""
    if column.overflow == "fold":
        return _GAP + min(_NAMES, _whole(column))
    words = str(column.header).split() or [""]
    return _GAP + max(_longest_line(text) for text in (*words, *column.cells))


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


def word_table(*columns: str) -> Table:
    """A table of words, without lines; what does not fit into a column goes on below."""
    table = WordTable(box=None, padding=(0, _GAP, 0, 0), header_style="dim", pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


class Stacked:
    """A table whose rows have a name, numbers or single words, and further lines below that have the whole width."""

    def __init__(self, *columns: str) -> None:
        """A table with these headers, the first of which is that of the names; `rows` holds them as the first row:
        cells, what stands below them, style.
        """
        self.rows: list[tuple[tuple[str, ...], tuple[str, ...], str]] = [(columns, (), "dim")]

    def add_row(self, *cells: str, below: Iterable[str] = (), style: str = "") -> None:
        """Add a row: a cell for each column, and what stands below them."""
        self.rows.append((cells, tuple(below), style))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Names have what the other columns leave; lines below are indented."""
        widths = [max(map(cell_len, column)) for column in zip(*(cells for cells, _, _ in self.rows), strict=True)]
        others = sum(widths[1:]) + _GAP * len(widths[1:])
        widths[0] = min(widths[0], max(_NAMES, options.max_width - others))
        for cells, below, style in self.rows:
            row = WordTable.grid(padding=(0, _GAP, 0, 0), pad_edge=False)
            for index, column_width in enumerate(widths):
                row.add_column(width=column_width, no_wrap=index > 0, overflow="fold" if index == 0 else "ellipsis")
            row.add_row(*cells, style=style)
            yield row
            for line in below:
                yield Padding(Words(line, style), (0, 0, 0, _GAP), expand=False)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """All the width there is."""
        return Measurement(options.max_width, options.max_width)


def plain_grid(columns: int) -> Table:
    """Columns of words without headers."""
    table = WordTable.grid(padding=(0, _GAP, 0, 0))
    for _ in range(columns):
        table.add_column(overflow="fold")
    return table


class Bullets(WordTable):
    """Sentences, each behind a dash; what does not fit on a line goes on under its first word."""

    def __init__(self, sentences: Iterable[str]) -> None:
        super().__init__(box=None, padding=(0, 1, 0, 0), show_header=False, pad_edge=False, collapse_padding=True)
        self.sentences = tuple(sentences)
        for _ in range(2):
            self.add_column(overflow="fold")
        for sentence in self.sentences:
            self.add_row("-", sentence)


def bullets(sentences: Iterable[str]) -> Table:
    """A list of sentences."""
    return Bullets(sentences)


def thinned(rows: Sequence[Row], peaks: Collection[int]) -> tuple[list[Row], list[Text]]:
    """Some of many layers, the first, the last and the `peaks` among them, and a note that says so."""
    if len(rows) <= MOST_ROWS:
        return list(rows), []
    count = MOST_ROWS - len(peaks)
    step = (len(rows) - 1) / (count - 1)
    indices = sorted({round(i * step) for i in range(count)} | set(peaks))
    note = Text(f"{len(indices)} of {len(rows)} rows; all of them are in --json.", style="dim")
    return [rows[i] for i in indices], [note]
