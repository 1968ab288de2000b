"""Blocks as a terminal of some width shows them, without colours."""

from __future__ import annotations

import io
from collections.abc import Collection, Iterable

from rich.console import Console

from moeparity.output.blocks import Block, Document
from moeparity.output.html.page import html
from moeparity.output.terminal import print_blocks


def printed(blocks: Iterable[Block] | Document, width: int = 100, asked_for: Collection[str] | None = None) -> str:
    """What is printed of blocks, or of a document."""
    out = io.StringIO()
    console = Console(file=out, width=width, highlight=False, markup=False, emoji=False)
    print_blocks(blocks.blocks if isinstance(blocks, Document) else blocks, console, asked_for)
    return out.getvalue()


def page_of(*blocks: Block) -> str:
    """A page with these blocks behind a status."""
    from moeparity.output.blocks import Status

    return html(Document(command="test", subject="blocks", blocks=(Status("done", "all"), *blocks)))
