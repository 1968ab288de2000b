"""Prints blocks on a terminal, with rich."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from io import StringIO
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.console import Group as RichGroup
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Column as RichColumn
from rich.table import Table as RichTable
from rich.text import Text

from moeparity.output.blocks import Bar, Block, Cell, Figure, Group, Lines, Phrase, Status, Styled, Table, names
from moeparity.output.figures import Series
from moeparity.output.status import headline, style_of, with_but
from moeparity.output.words import fitted

if TYPE_CHECKING:
    from rich.containers import Lines as RichLines
    from rich.style import StyleType

_GAP = 2
_NAMES = 16
"""Columns of names that wrap keep at least this many characters."""
_FEWEST = 8
"""Columns of names keep at least this many characters if numbers would have to be broken otherwise."""
_BAR = 12
"""The width of a full bar, in characters."""
_FIRST = len("record")
"""The least width of a status' first column, so that reports line up."""


def print_blocks(blocks: Iterable[Block], out: Console, asked_for: Collection[str] | None = None) -> None:
    """Print a report: its status, which is repeated at the end, and its groups. A group that is shown on request is
    printed if its name is in `asked_for` (None: all are); else one line mentions it.
    """
    opening: RenderableType | None = None
    unshown: dict[str, str] = {}
    for block in blocks:
        if isinstance(block, Group) and asked_for is not None and block.asked_for not in ("", *asked_for):
            unshown.setdefault(block.asked_for, block.holds)
            continue
        if isinstance(block, Group):
            _print_group(block, out)
        elif _is_shown(block):
            rendered = render(block)
            out.print(rendered)
            opening = rendered if isinstance(block, Status) and opening is None else opening
    if unshown:
        listed = names((f"--section {name}", holds) for name, holds in unshown.items())
        _print_group(Group(title="On request (-v for all of them)", blocks=(listed,)), out)
    if opening is not None:
        out.print()
        out.print(opening)


def _print_group(group: Group, out: Console) -> None:
    bodies = [render(block) for block in group.blocks if _is_shown(block)]
    if bodies:
        if group.title:
            out.print(Text(f"\n{group.title}", style="bold"))
        out.print(Padding(RichGroup(*bodies), (0, 0, 0, _GAP if group.title else 0), expand=False))


def _is_shown(block: Block) -> bool:
    """Whether a terminal shows anything of this block."""
    return bool(block.chart) if isinstance(block, Series) else not isinstance(block, Figure)


def in_lines(blocks: Iterable[Block], width: int) -> list[str]:
    """The lines that a terminal of this width shows, without styles."""
    out = Console(file=StringIO(), width=width, highlight=False, markup=False, emoji=False)
    print_blocks(blocks, out)
    assert isinstance(out.file, StringIO)
    return [line.rstrip() for line in out.file.getvalue().strip("\n").split("\n")]


def render(block: Block) -> RenderableType:
    """A block for rich to print. Raises TypeError for a block that a terminal can't show."""
    if isinstance(block, Status):
        return _status(block)
    if isinstance(block, Lines):
        return _lines(block)
    if isinstance(block, Table):
        return _table(block)
    if isinstance(block, Group):
        title = [Text(block.title, style="bold")] if block.title else []
        body = RichGroup(*(render(part) for part in block.blocks if _is_shown(part)))
        return RichGroup(*title, Padding(body, (0, 0, 0, _GAP if title else 0), expand=False))
    if isinstance(block, Series):
        return RichGroup(*map(Text, block.chart))
    raise TypeError(f"{type(block).__name__} is not shown on a terminal")


def text(phrase: Phrase, style: str = "") -> Text:
    """A phrase as a text that breaks between words. A word too long for a line is broken after a dot, a colon or the
    like.
    """
    if isinstance(phrase, tuple):
        return Text.assemble(*(part if isinstance(part, str) else (part.text, part.style) for part in phrase))
    return _Words(phrase, style) if isinstance(phrase, str) else _Words(phrase.text, phrase.style or style)


class _Words(Text):
    """A text that breaks between words; a path too long for a line loses its middle."""

    def wrap(self, console: Console, width: int, **options: Any) -> RichLines:
        fitting = fitted(self.plain, width)
        return Text.wrap(self if fitting == self.plain else Text(fitting, self.style), console, width, **options)


def _status(block: Status) -> RichTable:
    grid = _grid(2)
    grid.columns[0].min_width = _FIRST
    grid.add_row(
        Text(headline(block.state, block.but), style_of(block.state, block.but)), text(with_but(block.text, block.but))
    )
    for name, line in block.lines:
        grid.add_row(text(name), text(line))
    return grid


def _lines(block: Lines) -> RenderableType:
    if block.kind == "plain":
        return RichGroup(*map(_line, block.lines))
    grid = RichTable(box=None, padding=(0, 1, 0, 0), show_header=False, pad_edge=False, collapse_padding=True)
    for _ in range(2):
        grid.add_column(overflow="fold")
    for number, line in enumerate(block.lines, 1):
        grid.add_row("-" if block.kind == "bullets" else f"{number}.", text(line))
    return grid


def _line(phrase: Phrase) -> RenderableType:
    """A line; one that begins with blanks goes on below its first word."""
    if not isinstance(phrase, str) or not phrase.startswith(" "):
        return text(phrase)
    words = phrase.lstrip(" ")
    return Padding(text(words), (0, 0, 0, len(phrase) - len(words)), expand=False)


def _table(block: Table) -> RenderableType:
    body = _body(block)
    return RichGroup(body, *(text(note) for note in block.notes)) if block.notes else body


def _body(block: Table) -> RenderableType:
    if block.stacked or any(row.below for row in block.rows):
        return _Stacked(block)
    if not block.has_header:
        return _filled(_grid(len(block.columns)), block)
    words_only = all(column.kind == "name" for column in block.columns)
    body = _Narrowing(box=None, padding=(0, _GAP, 0, 0), header_style="dim", pad_edge=not words_only)
    body.optional = tuple(column.title for column in block.columns if column.optional)
    for column in block.columns:
        if column.kind == "name":
            body.add_column(column.title, overflow="fold")
        else:
            body.add_column(column.title, no_wrap=True)
    return _filled(body, block)


def _filled(body: RichTable, block: Table) -> RichTable:
    for row in block.rows:
        body.add_row(*map(_cell, row.cells), style=row.style)
    return body


def _grid(columns: int) -> RichTable:
    """Columns of words without headers."""
    grid = RichTable.grid(padding=(0, _GAP, 0, 0))
    for _ in range(columns):
        grid.add_column(overflow="fold")
    return grid


def _cell(cell: Cell) -> Text:
    return Text("#" * max(1, round(_BAR * cell.share))) if isinstance(cell, Bar) else text(cell)


class _Narrowing(RichTable):
    """A table that never breaks numbers: if the terminal is narrow, it wraps headers, then drops the `optional`
    columns, then gives each row's name a line of its own.
    """

    optional: tuple[str, ...] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if sum(map(_whole, self.columns)) > options.max_width:
            for column in self.columns:
                column.no_wrap = False
                column.width = _least(column) - _GAP if column.overflow != "fold" else None
            for header in self.optional:
                if sum(map(_least, self.columns)) > options.max_width:
                    self.columns = [column for column in self.columns if column.header != header]
            first, *others = self.columns
            room = options.max_width - sum(map(_least, others))
            if room < _FEWEST and [column.overflow for column in (first, *others)].count("fold") == 1:
                yield from self._below_names()
                return
        yield from super().__rich_console__(console, options)

    def _below_names(self) -> Iterator[RenderableType]:
        names_of, *others = self.columns
        yield text(str(names_of.header), "dim")
        yield self._indented([text(str(column.header)) for column in others], "dim")
        for name, row, *cells in zip(names_of.cells, self.rows, *(column.cells for column in others), strict=True):
            yield _Words(str(name), row.style or "")
            if any(map(str, cells)):
                yield self._indented(cells, row.style)

    def _indented(self, cells: Iterable[RenderableType], style: StyleType | None) -> RenderableType:
        row = RichTable.grid(padding=(0, _GAP, 0, 0), pad_edge=False)
        for column in self.columns[1:]:
            row.add_column(width=_least(column) - _GAP, overflow="fold")
        row.add_row(*cells, style=style)
        return Padding(row, (0, 0, 0, _GAP), expand=False)


def _whole(column: RichColumn) -> int:
    return _GAP + max(_longest_line(cell) for cell in (column.header, *column.cells))


def _longest_line(cell: object) -> int:
    return max((cell_len(line) for line in str(cell).split("\n")), default=0)


def _least(column: RichColumn) -> int:
    """The width of the longest cell and of the header's longest word; for names, the width that is left for them."""
    if column.overflow == "fold":
        return _GAP + min(_NAMES, _whole(column))
    words = str(column.header).split() or [""]
    return _GAP + max(_longest_line(part) for part in (*words, *column.cells))


class _Stacked:
    """A table whose rows have further lines below them over its whole width; names get the width that other columns
    leave.
    """

    def __init__(self, block: Table) -> None:
        header = tuple(column.title for column in block.columns)
        rows = [(tuple(map(_cell, row.cells)), row.below, row.style) for row in block.rows]
        self.rows = [(tuple(map(text, header)), (), "dim"), *rows]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        widths = [
            max(cell_len(cell.plain) for cell in column)
            for column in zip(*(cells for cells, _, _ in self.rows), strict=True)
        ]
        others = sum(widths[1:]) + _GAP * len(widths[1:])
        widths[0] = min(widths[0], max(_FEWEST, options.max_width - others))
        for cells, below, style in self.rows:
            row = RichTable.grid(padding=(0, _GAP, 0, 0), pad_edge=False)
            for index, column_width in enumerate(widths):
                row.add_column(width=column_width, no_wrap=index > 0, overflow="fold" if index == 0 else "ellipsis")
            row.add_row(*cells, style=style)
            yield row
            for line in below:
                yield Padding(text(Styled(line, style)), (0, 0, 0, _GAP), expand=False)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(options.max_width, options.max_width)
