"""Blocks as Markdown for GitHub and GitLab. Text from files can't become a heading, link, mention, tag or table."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from moeparity.output.blocks import Block, Cell, Document, Group, Lines, Status, Styled, Table, plain
from moeparity.output.status import headline, with_but
from moeparity.output.words import printable

MOST = 12
"""A table in a short report has at most this many rows."""

_SPECIAL = re.compile(r"[\\`*_\[\]#|~$]|^[-+](?=\s|$|-)|^=")
"""What Markdown interprets within a line, or at its beginning."""
_NOTHING = "<!-- -->"
"""Separates what would be read together: `@` and a name, `#` and a number, the parts of an address."""
_TAKEN = re.compile(r"@|\\#|(?<=:)/|(?i:\bgh)(?=-)|(?i:\bwww)(?=\.)|^(?=[0-9]+[.)](?:\s|$))")


def escaped(text: str) -> str:
    """A text that Markdown shows literally, on one line."""
    one_line = " ".join(printable(text).split())
    plain = one_line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    marked = _SPECIAL.sub(lambda match: f"\\{match[0]}", plain)
    return _TAKEN.sub(lambda match: f"{match[0]}{_NOTHING}", marked)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of texts, which are escaped here."""
    lines = [header, ["---"] * len(header), *([escaped(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def picture(says: str, file: str) -> str:
    """A picture in a file beside the text."""
    name = re.sub(r"[^A-Za-z0-9._-]", lambda match: "".join(f"%{byte:02x}" for byte in match[0].encode()), file)
    return f"![{escaped(says)}]({name})"


def markdown(document: Document) -> str:
    """A short report for a pull request or a CI summary: a headline, then each block."""
    status = document.status
    command = "" if document.command == "bisect" else f" {document.command}"
    title = f"### moeparity{command}: {headline(status.state, status.but)}"
    return "\n\n".join([title, *in_markdown(document.blocks)])


def in_markdown(blocks: Iterable[Block]) -> Iterator[str]:
    """Each block as Markdown, without figures."""
    for block in blocks:
        if isinstance(block, Group):
            if block.title:
                yield f"**{escaped(block.title)}**"
            yield from in_markdown(block.blocks)
        elif isinstance(block, Table):
            yield _table(block)
        elif isinstance(block, Lines):
            mark = {"bullets": "- ", "numbered": "1. "}.get(block.kind, "")
            yield "\n".join(f"{mark}{escaped(plain(line))}" for line in block.lines)
        elif isinstance(block, Status) and block.lines:
            yield table(["", ""], [("verdict", with_but(block.text, block.but)), *block.lines])
        elif isinstance(block, Status):
            yield escaped(with_but(block.text, block.but))


def _table(block: Table) -> str:
    rows = [[_words(cell) for cell in row.cells] for row in block.rows]
    more = f"\n\n{len(rows) - MOST} more are in the JSON." if len(rows) > MOST else ""
    return table([column.title for column in block.columns], rows[:MOST]) + more


def _words(cell: Cell) -> str:
    return plain(cell) if isinstance(cell, str | Styled | tuple) else f"{cell.share:.0%}"
