"""Turns a `Drawing` of a graph into text for Mermaid or Graphviz."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from html import escape
from typing import Literal

from moeparity.output.words import printable

FILL, LINE, QUIET = "#ffe9b8", "#b35c00", "#9a9a9a"
"""Colours: amber fill and outline where the sides differ (distinct for colour-blind readers), grey where nothing is
read.
"""


BoxKind = Literal["read", "unread", "repeat"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """One node. `differences`: lines of text; `op`: "" for a value that comes from outside the graph."""

    key: str
    name: str
    op: str
    differences: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Boxes in one frame; `groups` are frames inside it."""

    key: str
    title: str
    boxes: tuple[Box, ...] = ()
    groups: tuple[Group, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrow:
    """An edge. `value` names the part of the source's result that is read, "" if the result is one value.

    kind: `unread` edges carry nothing under these settings; `repeat` edges lead to the next layer of the same kind.
    """

    source: str
    target: str
    value: str
    kind: BoxKind

    @property
    def label(self) -> str:
        """The text beside the arrow."""
        parts = {"read": (self.value,), "unread": (self.value, "not read"), "repeat": (self.value, "next layer")}
        return ", ".join(part for part in parts[self.kind] if part)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """A graph to draw. The keys of boxes and groups are unique and made of letters, digits and _."""

    title: str
    boxes: tuple[Box, ...]
    groups: tuple[Group, ...]
    arrows: tuple[Arrow, ...]

    @property
    def everything(self) -> Iterator[Box]:
        """All boxes, framed or not."""
        yield from self.boxes
        for group in self.groups:
            yield from _inside(group)


def mermaid(drawing: Drawing) -> str:
    """A Mermaid flowchart (11.x; nothing in it is newer than 10)."""
    lines = ["---", f"title: {json.dumps(_plain(drawing.title), ensure_ascii=False)}", "---", "flowchart TB"]
    lines += [f"  {_mermaid_box(box)}" for box in drawing.boxes]
    for group in drawing.groups:
        lines += _mermaid_group(group, "  ")
    lines += [f"  {_mermaid_arrow(arrow)}" for arrow in drawing.arrows]
    keys = [box.key for box in drawing.everything if box.differences]
    if keys:
        lines.append(f"  classDef differs fill:{FILL},stroke:{LINE},stroke-width:2px,color:#000")
        lines.append(f"  class {','.join(keys)} differs")
    return "\n".join(lines)


def dot(drawing: Drawing) -> str:
    """A Graphviz digraph, for `dot -Tsvg`."""
    lines = [
        "digraph moeparity {",
        f"  label={_dot_string(drawing.title)} labelloc=t fontname=Helvetica fontsize=16 rankdir=TB",
        "  compound=true nodesep=0.3 ranksep=0.35",
        '  node [shape=box style="rounded,filled" fillcolor=white fontname=Helvetica fontsize=12 margin="0.14,0.07"]',
        "  edge [fontname=Helvetica fontsize=10 arrowsize=0.7]",
    ]
    lines += [f"  {_dot_box(box)}" for box in drawing.boxes]
    for group in drawing.groups:
        lines += _dot_group(group, "  ", "#f4f6f8")
    lines += [f"  {_dot_arrow(arrow)}" for arrow in drawing.arrows]
    return "\n".join([*lines, "}"])


def _inside(group: Group) -> Iterator[Box]:
    yield from group.boxes
    for subgroup in group.groups:
        yield from _inside(subgroup)


def _lines(box: Box, escaped: Callable[[str], str]) -> str:
    """The text of a box: its name in bold, its op unless that is the name, and what differs, as HTML."""
    op = [escaped(box.op)] if box.op and box.op != box.name else []
    return "<br/>".join([f"<b>{escaped(box.name)}</b>", *op, *map(escaped, box.differences)])


def _plain(text: str) -> str:
    """A text on one line, without invisible characters."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def _html(text: str) -> str:
    return escape(_plain(text))


def _mermaid_group(group: Group, indent: str) -> list[str]:
    lines = [f"{indent}subgraph {group.key}[{_mermaid_string(group.title)}]"]
    lines += [f"{indent}  {_mermaid_box(box)}" for box in group.boxes]
    for subgroup in group.groups:
        lines += _mermaid_group(subgroup, indent + "  ")
    return [*lines, f"{indent}end"]


def _mermaid_box(box: Box) -> str:
    start, end = ("[", "]") if box.op else ("([", "])")
    return f'{box.key}{start}"{_lines(box, _mermaid_text)}"{end}'


def _mermaid_arrow(arrow: Arrow) -> str:
    line = "-->" if arrow.kind == "read" else "-.->"
    label = f"|{_mermaid_string(arrow.label)}|" if arrow.label else ""
    return f"{arrow.source} {line}{label} {arrow.target}"


def _mermaid_string(text: str) -> str:
    return f'"{_mermaid_text(text)}"'


_MERMAID = {ord(character): f"#{ord(character)};" for character in "#&<>\"'%`\\"}
"""Mermaid's own spelling of entities, for characters that Mermaid would interpret: HTML's, `%%{` (a directive wherever
it stands), backticks (Markdown) and `\\n` (a line break).
"""


def _mermaid_text(text: str) -> str:
    return _plain(text).translate(_MERMAID)


def _dot_group(group: Group, indent: str, colour: str) -> list[str]:
    lines = [
        f"{indent}subgraph cluster_{group.key} {{",
        f'{indent}  label={_dot_string(group.title)} style="rounded,filled" color="#c4ccd4" fillcolor="{colour}"',
    ]
    lines += [f"{indent}  {_dot_box(box)}" for box in group.boxes]
    for subgroup in group.groups:
        lines += _dot_group(subgroup, indent + "  ", "#ffffff")
    return [*lines, f"{indent}}}"]


def _dot_box(box: Box) -> str:
    look = "" if box.op else ' shape=plaintext style=""'
    look += f' fillcolor="{FILL}" color="{LINE}" penwidth=2' if box.differences else ""
    return f"{box.key} [label=<{_lines(box, _html)}>{look}]"


def _dot_arrow(arrow: Arrow) -> str:
    look = {
        "read": "",
        "unread": f' style=dotted color="{QUIET}" fontcolor="{QUIET}"',
        "repeat": " style=dashed constraint=false",
    }[arrow.kind]
    return f"{arrow.source} -> {arrow.target} [label={_dot_string(arrow.label)}{look}]"


def _dot_string(text: str) -> str:
    body = _plain(text).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{body}"'
