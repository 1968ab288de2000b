"""Blocks as HTML: the same tables, lists and sentences as on a terminal."""

from __future__ import annotations

from collections.abc import Iterable

from markupsafe import Markup

from moeparity.output.blocks import Bar, Block, Cell, Group, Lines, Phrase, Row, Status, Styled, Table, Words
from moeparity.output.html.tags import EMPTY, escaped, scrolled, tag
from moeparity.output.status import headline, style_of, with_but

_STYLES = ("bold", "dim", "red", "green", "yellow")
_DEEPEST = 3
"""Names that begin with blanks are indented by at most this many steps."""


def markup(block: Block, label: str = "") -> Markup:
    """A block as HTML; `label` names a table to screen readers. Raises TypeError for a block that has no words."""
    if isinstance(block, Status):
        return _status(block)
    if isinstance(block, Lines):
        return _lines(block)
    if isinstance(block, Table):
        return _table(block, label) + EMPTY.join(tag("p", phrase(note), class_=look(note)) for note in block.notes)
    if isinstance(block, Group):
        return EMPTY.join(markup(part, block.title or label) for part in block.blocks)
    raise TypeError(f"{type(block).__name__} has no markup")


def phrase(words: Phrase) -> Markup:
    """Words with their looks, as HTML; the look of a whole line belongs to its element."""
    if isinstance(words, tuple):
        return EMPTY.join(map(_part, words))
    return escaped((words if isinstance(words, str) else words.text).strip("\n"))


def _part(words: Words) -> Markup:
    classes = look(words)
    text = escaped(words if isinstance(words, str) else words.text)
    return tag("span", text, class_=classes) if classes else text


def look(words: Phrase) -> str | None:
    """The classes in the style sheet for a line's look."""
    return classes_of(words.style) if isinstance(words, Styled) else None


def classes_of(style: str) -> str | None:
    """The classes in the style sheet for a look's name."""
    return " ".join(f"t-{word}" for word in _STYLES if word in style.split()) or None


def _status(block: Status) -> Markup:
    opening = Styled(headline(block.state, block.but), style_of(block.state, block.but))
    rows: list[tuple[Cell, ...]] = [(opening, with_but(block.text, block.but)), *block.lines]
    return _grid(map(Row, rows))


def _lines(block: Lines) -> Markup:
    if block.kind != "plain":
        return tag("ul" if block.kind == "bullets" else "ol", [tag("li", phrase(line)) for line in block.lines])
    return EMPTY.join(tag("p", phrase(line), class_=look(line)) for line in block.lines)


def _table(block: Table, label: str) -> Markup:
    if not block.has_header:
        return _grid(block.rows)
    numeric = [column.kind == "number" for column in block.columns]
    head = [
        tag("th", column.title, scope="col", class_=_num(n)) for column, n in zip(block.columns, numeric, strict=True)
    ]
    body = [part for row in block.rows for part in _rows(row, numeric, stacked=block.stacked)]
    return scrolled(tag("table", [tag("thead", tag("tr", head)), tag("tbody", body)]), label)


def _rows(row: Row, numeric: list[bool], *, stacked: bool) -> Iterable[Markup]:
    cells = [_td(cell, n) for cell, n in zip(row.cells, numeric, strict=False)]
    yield tag("tr", [_name(row.cells[0]), *cells[1:]] if stacked else cells, class_=classes_of(row.style))
    if row.below:
        lines = tag("td", [tag("div", line) for line in row.below], colspan=len(numeric))
        yield tag("tr", lines, class_="below")


def _name(cell: Cell) -> Markup:
    """The name of a row that has lines below it, indented if it begins with blanks."""
    text = cell if isinstance(cell, str) else ""
    indent = min((len(text) - len(text.lstrip())) // 2, _DEEPEST)
    return tag("th", _cell(text.strip() or cell), scope="row", class_=f"in{indent}" if indent else None)


def _td(cell: Cell, numeric: bool) -> Markup:
    return tag("td", _cell(cell), class_=_num(numeric))


def _cell(cell: Cell) -> Markup:
    if isinstance(cell, Bar):
        bar = tag("rect", width=f"{100 * cell.share:.0f}%", height="100%")
        return tag("svg", bar, class_="minibar", aria_hidden="true")
    classes = look(cell)
    return tag("span", phrase(cell), class_=classes) if classes else phrase(cell)


def _grid(rows: Iterable[Row]) -> Markup:
    """Columns of words without headers; two columns are names with what they stand for."""
    body = [tag("tr", [tag("td", _cell(cell)) for cell in row.cells], class_=classes_of(row.style)) for row in rows]
    return tag("table", tag("tbody", body), class_="grid", role="presentation")


def _num(numeric: bool) -> str | None:
    return "num" if numeric else None
