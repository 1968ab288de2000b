"""Golden screens: what a section or a document prints at 80 columns of reports made by hand, one text for each.

After a change of wording, `UPDATE_SNAPSHOTS=1 pytest tests/test_screens.py` writes them anew: read each one.
"""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from moeparity.output.blocks import Block, Document, Figure, Group, Status
from moeparity.output.figures import NodeGraph, Plot, Series, Strips
from tests.printed import printed

UPDATE = os.environ.get("UPDATE_SNAPSHOTS") == "1"
WIDTH = 80
_PLACES = 4
"""So many places of a picture are told."""

Screens = Mapping[str, Iterable[Block] | Document]
"""What is printed, by the heading under which it stands in its text."""


def text_of(screens: Screens) -> str:
    """All screens below each other; of a status, which a terminal repeats at the end, the first alone."""
    parts = []
    for heading, blocks in screens.items():
        of_screen = list(blocks.blocks if isinstance(blocks, Document) else blocks)
        lines = [line.rstrip() for line in _without_closing(of_screen)]
        lines += [line for place in _figures(of_screen) for line in _picture(*place)]
        body = "\n".join(lines).strip("\n")
        parts.append(f"==== {heading} ====\n{body or '(nothing)'}\n")
    return "\n".join(parts)


def golden(path: Path, text: str) -> str:
    """What the file keeps; the text is written into it first where that was asked for."""
    if UPDATE:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, "utf-8")
    return path.read_text("utf-8")


def _without_closing(blocks: list[Block]) -> list[str]:
    lines = printed(blocks, WIDTH).splitlines()
    status = next((block for block in blocks if isinstance(block, Status)), None)
    if status is None:
        return lines
    repeated = len(printed([status], WIDTH).splitlines()) // 2
    assert lines[:repeated] == lines[-repeated:]
    return lines[: -repeated - 1]


def _figures(blocks: Iterable[Block], title: str = "") -> Iterator[tuple[str, Figure]]:
    """Every figure behind the title of the group that it stands in."""
    for block in blocks:
        if isinstance(block, Figure):
            yield title, block
        elif isinstance(block, Group):
            yield from _figures(block.blocks, block.title)


def _picture(of: str, figure: Figure) -> Iterator[str]:
    """What a page writes in and beside a picture, which a terminal does not show."""
    yield ""
    yield f"  [picture] {': '.join(filter(None, dict.fromkeys((of, figure.title))))}"
    for line in _words(figure):
        yield from textwrap.wrap(line, WIDTH, initial_indent="  ", subsequent_indent="    ") or [""]
    if isinstance(figure, NodeGraph):
        yield from _nodes(figure)


def _words(figure: Figure) -> Iterator[str]:
    if isinstance(figure, Series):
        yield f"{figure.label}: {figure.y_label}, over {figure.x_label}"
        yield from (f"line: {line.label}" for line in figure.lines)
        yield from ("; ".join(words) for words in figure.words[:_PLACES])
        yield from [f"... and {len(figure.words) - _PLACES} more places"] * (len(figure.words) > _PLACES)
    elif isinstance(figure, Strips):
        yield f"axis: {figure.unit}"
        yield from (f"{strip.name}: {strip.says}" for strip in figure.strips if strip.says)
    elif isinstance(figure, Plot):
        yield figure.label
        yield from (f"tool: {tool.text} {tool.label}".rstrip() for tool in figure.tools)
        yield from (f"below, {look}: {words}" for look, words in figure.below.items())
    if isinstance(figure, Series) and figure.bound is not None:
        yield f"across: {figure.bound[0]}"
    elif isinstance(figure, NodeGraph | Plot | Strips):
        yield from (f"key, {look}: {words}" for look, words in figure.keys.items())
    if isinstance(figure, Series | Plot | Strips) and figure.note:
        yield f"note: {figure.note}"


def _nodes(graph: NodeGraph) -> Iterator[str]:
    """Each node's line, and below it what is shown when it is chosen."""
    for part in graph.parts:
        yield f"  part: {part.title}"
        for node in part.nodes:
            yield "  " + " | ".join(filter(None, (node.name, node.op, *(chip.text for chip in node.chips), node.says)))
            yield from (f"    {line.rstrip()}" for line in printed(node.panel, WIDTH - 4).splitlines())
