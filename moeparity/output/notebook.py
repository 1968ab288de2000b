"""Blocks in a notebook: the status as a small table, and the whole text behind a line that unfolds it.

The HTML sets no colours, so that it can be read on light and on dark; its words are the terminal's.
"""

from __future__ import annotations

import io
from collections.abc import Collection, Iterable, Iterator
from dataclasses import fields, is_dataclass
from html import escape
from typing import Any

from rich.console import Console

from moeparity.output.blocks import Block, Status
from moeparity.output.status import headline, with_but
from moeparity.output.terminal import print_blocks
from moeparity.output.words import printable

WIDTH = 100
"""The width of the text, in characters."""
_CELL = "text-align:left;vertical-align:top;padding:0.1em 1em 0.1em 0"


def notebook(blocks: Iterable[Block], asked_for: Collection[str] | None = None) -> str:
    """The HTML of a report; `asked_for` as `print_blocks` takes it."""
    opening, *others = blocks
    assert isinstance(opening, Status)
    lines = ((headline(opening.state, opening.but), with_but(opening.text, opening.but)), *opening.lines)
    rows = "".join(
        f'<tr><th scope="row" style="{_CELL}">{_escaped(name)}</th><td style="{_CELL}">{_escaped(line)}</td></tr>'
        for name, line in lines
    )
    text = io.StringIO()
    console = Console(file=text, width=WIDTH, markup=False, highlight=False, emoji=False)
    print_blocks([opening, *others], console, asked_for)
    return (
        f'<div class="moeparity-report"><table style="border-collapse:collapse">{rows}</table>'
        f"<details><summary>the whole report</summary>"
        f'<pre style="white-space:pre;overflow-x:auto">{_escaped(_unpadded(text.getvalue()))}</pre></details></div>'
    )


def columns(row: object, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The fields of an entry of a table, as (name, value); nested fields are named `outer.inner`, and several words are
    joined into one text.
    """
    if isinstance(row, dict):
        yield from row.items()
        return
    assert is_dataclass(row)
    for field in fields(row):
        value = getattr(row, field.name)
        if is_dataclass(value):
            yield from columns(value, f"{prefix}{field.name}.")
        elif isinstance(value, tuple) and all(isinstance(item, str) for item in value):
            yield f"{prefix}{field.name}", ", ".join(value)
        else:
            yield f"{prefix}{field.name}", value


def _unpadded(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.splitlines()).strip("\n")


def _escaped(text: str) -> str:
    return escape(printable(text))
