"""What the terminal prints, as HTML: the same tables, lists and sentences, so that a page has no words of its own.

Everything that is not moeparity's own markup is escaped, and characters that hide what is written are shown by number.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise

from markupsafe import Markup
from markupsafe import escape as escape_html
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from moeparity.output.tables import Bullets, Stacked
from moeparity.output.words import printable

_STYLES = ("bold", "dim", "red", "green", "yellow")
_NUMBER = re.compile(
    r"(! )?[<>~x+-]*\d[\d.,%()+ e-]*(to [<>\d.%e+-]+)?|not finite|unknown|inf|nan|-inf|"
    r"bit-identical|no effect|masked|all bits|cannot run|too few sequences"
)
_BAR = re.compile(r"#{1,12}")
_BAR_WIDTH = 12


def escaped(text: object) -> Markup:
    """A text as HTML, on lines as it has them."""
    return Markup("<br>").join(escape_html(line) for line in printable(str(text)).split("\n"))


def tag(name: str, content: Iterable[Markup] | Markup | str = "", **attributes: object) -> Markup:
    """An element; `class_` is its class, `_` in names stands for `-`; what is None or False is left out."""
    written = [
        Markup(' {}="{}"').format(key.strip("_").replace("_", "-"), printable(str(value)))
        for key, value in attributes.items()
        if value is not None and value is not False
    ]
    inner = (
        escaped(content)
        if type(content) is str
        else Markup("").join(content if not isinstance(content, str) else [content])
    )
    start = Markup("<{}{}>").format(Markup(name), Markup("").join(written))  # noqa: S704
    return start + inner + Markup("</{}>").format(Markup(name))  # noqa: S704


def markup(renderable: RenderableType, label: str = "") -> Markup:
    """A table, list, text, or group of these. `label` names a table to those who do not see it.

    Raises TypeError for what no report prints.
    """
    if isinstance(renderable, str):
        return tag("p", renderable.strip("\n"), class_=_pre(renderable))
    if isinstance(renderable, Text):
        classes = filter(None, (_classes(str(renderable.style)), _pre(renderable.plain)))
        return tag("p", inline(renderable), class_=" ".join(classes) or None)
    if isinstance(renderable, Padding):
        return markup(renderable.renderable, label)
    if isinstance(renderable, Group):
        return Markup("").join(markup(part, label) for part in renderable.renderables)
    if isinstance(renderable, Bullets):
        return tag("ul", [tag("li", sentence) for sentence in renderable.sentences])
    if isinstance(renderable, Stacked):
        return _scrolled(_stacked(renderable), label)
    if isinstance(renderable, Table):
        return _scrolled(_table(renderable), label) if renderable.show_header else _grid(renderable)
    raise TypeError(f"{type(renderable).__name__} has no markup")


def inline(text: Text) -> Markup:
    """A text with its styled parts."""
    plain, parts = text.plain, []
    edges = sorted({0, len(plain), *(edge for span in text.spans for edge in (span.start, span.end))})
    for start, end in pairwise(edges):
        styles = " ".join(str(span.style) for span in text.spans if span.start <= start and end <= span.end)
        piece = escaped(plain[start:end])
        parts.append(tag("span", piece, class_=classes) if (classes := _classes(styles)) else piece)
    whole = Markup("").join(parts)
    return whole.removeprefix("<br>")


def _classes(style: str) -> str | None:
    return " ".join(f"t-{word}" for word in _STYLES if word in style.split()) or None


def _pre(text: str) -> str | None:
    """The look of lines in which blanks set words below each other."""
    return "pre" if "\n" in text.strip() and "  " in text.strip() else None


def _scrolled(table: Markup, label: str) -> Markup:
    """A table that is wider than the page scrolls by itself, by keys too."""
    return tag("div", table, class_="scroll", tabindex="0", role="region", aria_label=label or "table")


def _flattened(table: Table) -> Table:
    """A table whose last column holds grids of one row, its header too, as one whose cells stand side by side."""
    *columns, last = table.columns
    inner = [last.header, *last.cells]
    if not all(isinstance(part, Table) and len(part.rows) == 1 for part in inner):
        return table
    head, *rows = [[next(iter(column.cells)) for column in part.columns] for part in inner if isinstance(part, Table)]
    width = max(map(len, (head, *rows)))
    flat = Table(*(str(column.header) for column in columns), *(str(cell) for cell in head))
    for index, row in enumerate(rows):
        first = [list(column.cells)[index] for column in columns]
        flat.add_row(*first, *row, *[""] * (width - len(row)))
    return flat


def _table(table: Table) -> Markup:
    table = _flattened(table)
    rows = list(_rows(table))
    numeric = [_is_numeric(column) for column in table.columns]
    head = [tag("th", _cell(column.header), scope="col", class_=_num(n)) for column, n in _paired(table, numeric)]
    body = [
        tag("tr", [tag("td", _cell(cell), class_=_num(n)) for cell, n in zip(row, numeric, strict=True)], class_=style)
        for row, style in rows
    ]
    return tag("table", [tag("thead", tag("tr", head)), tag("tbody", body)])


def _paired(table: Table, numeric: list[bool]) -> Iterator[tuple[Column, bool]]:
    return zip(table.columns, numeric, strict=True)


def _rows(table: Table) -> Iterator[tuple[list[RenderableType], str | None]]:
    cells = [list(column.cells) for column in table.columns]
    for index, row in enumerate(table.rows):
        yield [column[index] for column in cells], _classes(str(row.style or ""))


def _grid(table: Table) -> Markup:
    """Columns of words without headers: where there are two, names and what they stand for."""
    rows = [tag("tr", [tag("td", _cell(cell)) for cell in row], class_=style) for row, style in _rows(table)]
    return tag("table", tag("tbody", rows), class_="grid", role="presentation")


def _stacked(table: Stacked) -> Markup:
    (names, _, _), *rows = table.rows
    numeric = [_all_numbers([cells[index] for cells, _, _ in rows]) for index in range(len(names))]
    head = [tag("th", name, scope="col", class_=_num(n)) for name, n in zip(names, numeric, strict=True)]
    body = []
    for cells, below, style in rows:
        indent = len(cells[0]) - len(cells[0].lstrip())
        first = tag("th", cells[0].strip(), scope="row", class_=f"in{min(indent // 2, 3)}" if indent else None)
        others = [tag("td", cell.strip(), class_=_num(n)) for cell, n in zip(cells[1:], numeric[1:], strict=True)]
        body.append(tag("tr", [first, *others], class_=_classes(style)))
        if below:
            lines = tag("td", [tag("div", line) for line in below], colspan=len(cells))
            body.append(tag("tr", lines, class_="below"))
    return tag("table", [tag("thead", tag("tr", head)), tag("tbody", body)])


def _is_numeric(column: Column) -> bool:
    return _all_numbers([str(cell) for cell in column.cells])


def _all_numbers(cells: Iterable[str]) -> bool:
    """Whether every cell is empty, a number, or what stands for one."""
    texts = [cell.strip() for cell in cells]
    return any(texts) and all(_NUMBER.fullmatch(text) for text in texts if text)


def _num(numeric: bool) -> str | None:
    return "num" if numeric else None


def _cell(cell: RenderableType) -> Markup:
    """What stands in a cell; a bar of `#` becomes one."""
    text = str(cell)
    if _BAR.fullmatch(text):
        bar = tag("rect", width=f"{100 * len(text) / _BAR_WIDTH:.0f}%", height="100%")
        return tag("svg", bar, class_="minibar", aria_hidden="true")
    if isinstance(cell, Text):
        classes = _classes(str(cell.style))
        return tag("span", inline(cell), class_=classes) if classes else inline(cell)
    if isinstance(cell, str):
        return escaped(cell)
    return markup(cell)
