"""The op graph as shown: nodes one below the other, edges beside them, and a panel with the choices of each node."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from moeparity.bisection.data import ReportData
from moeparity.bisection.divergence.data import NodeError, Size
from moeparity.bisection.graph.data import GraphNode, GraphSegment, NodeChoice, OpGraph, SideChoice
from moeparity.bisection.toggles.data import ToggleResult
from moeparity.output.blocks import Block, Cell, Group, Phrase, Row, Styled, columns, group, lines, table
from moeparity.output.figures import Branch, Chip, GraphPart, Lanes, NodeGraph, NodeItem, Trunk
from moeparity.plan.address import role


def lanes(segment: GraphSegment, goes_on: frozenset[str]) -> Lanes:
    """The lanes of a segment's nodes; `goes_on` are the roles that a later segment or layer reads."""
    rows = {node.role: row for row, node in enumerate(segment.nodes)}
    inputs = [_inputs(segment, row, rows) for row in range(len(segment.nodes))]
    last = _last_readers(segment, inputs, goes_on)
    lane_of: dict[str, int] = {}
    free_from: list[int] = []
    for source in dict.fromkeys(name for names in inputs for name in names if name not in rows):
        lane_of[source] = _take(free_from, -1, last[source])
    nodes, branches = [], []
    for row, node in enumerate(segment.nodes):
        ending = [lane_of[name] for name in inputs[row] if last[name] == row]
        for lane in ending:
            free_from[lane] = row
        lane = min(ending) if ending else _free(free_from, row)
        lane_of[node.role] = lane
        free_from[lane] = max(last.get(node.role, row), row)
        nodes.append(lane)
        unread = {_name(read.source, rows, row) for read in node.reads if read.unread}
        branches += [
            Branch(row=row, source=lane_of[name], target=lane, unread=name in unread)
            for name in inputs[row]
            if lane_of[name] != lane
        ]
    trunks = tuple(
        Trunk(lane=lane, start=rows.get(name, -1), end=last[name]) for name, lane in lane_of.items() if name in last
    )
    return Lanes(nodes=tuple(nodes), trunks=trunks, branches=tuple(branches), count=len(free_from))


_ABOVE = "from above"


def _name(source: str, rows: dict[str, int], row: int) -> str:
    """The maker of a value; all values from other segments share one name."""
    return source if rows.get(source, row) < row else _ABOVE


def _inputs(segment: GraphSegment, row: int, rows: dict[str, int]) -> list[str]:
    return list(dict.fromkeys(_name(read.source, rows, row) for read in segment.nodes[row].reads))


def _last_readers(segment: GraphSegment, inputs: Sequence[Sequence[str]], goes_on: frozenset[str]) -> dict[str, int]:
    last = {name: row for row, names in enumerate(inputs) for name in names}
    return last | {node.role: len(segment.nodes) for node in segment.nodes if node.role in goes_on}


def _free(free_from: list[int], row: int) -> int:
    """The first lane that is free at this row."""
    for lane, until in enumerate(free_from):
        if until < row:
            return lane
    free_from.append(row)
    return len(free_from) - 1


def _take(free_from: list[int], row: int, until: int) -> int:
    lane = _free(free_from, row)
    free_from[lane] = until
    return lane


_KEYS = {"first": "it starts here", "culprit": "a culprit", "differs": "a choice differs", "plain": "both sides alike"}
_CHIPS = 1
"""This many words about its toggles stand beside a node; its panel has all of them."""
_ORDER = (
    "culprit",
    "saturated",
    "contributes",
    "offsets",
    "helps",
    "acts",
    "undecided",
    "masked",
    "negligible",
    "refused",
    "had no effect",
)
"""Roles of toggles, the most important first; the last ones are used if there are no shares."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Marks:
    """What a report says of nodes. first: the first root's role; roots: all roots' roles; toggles: name -> role of the
    toggle; errors: by role of the node and layer.
    """

    first: str
    roots: frozenset[str]
    toggles: Mapping[str, str]
    errors: Mapping[tuple[str, int | None], NodeError]


def show(report: ReportData) -> Iterator[Group]:
    """The group with the graph; nothing if the report has none."""
    if report.graph is None:
        return
    marks, further = _marks(report), _goes_on(report.graph)
    parts = [
        GraphPart(
            title=segment.title,
            nodes=[_node(node, segment, marks) for node in segment.nodes],
            lanes=lanes(segment, further),
        )
        for segment in report.graph.segments
    ]
    yield group("Op graph", NodeGraph(title="", parts=parts, keys=_KEYS))


def _goes_on(graph: OpGraph) -> frozenset[str]:
    """Roles of nodes whose value is read in another segment, or in the next layer."""
    segment_of = {node.role: number for number, segment in enumerate(graph.segments) for node in segment.nodes}
    return frozenset(
        read.source
        for number, segment in enumerate(graph.segments)
        for node in segment.nodes
        for read in node.reads
        if read.next_layer or segment_of.get(read.source) != number
    )


def _marks(report: ReportData) -> _Marks:
    roles = {row.name: row.role for row in report.attribution.shares.rows} if report.attribution else {}
    for toggle in report.toggles:
        roles.setdefault(toggle.name, _effect(toggle))
    return _Marks(
        first=role(report.roots[0].node) if report.roots else "",
        roots=frozenset(role(root.node) for root in report.roots),
        toggles=roles,
        errors={(role(node.node), node.layer): node for node in report.nodes},
    )


def _effect(toggle: ToggleResult) -> str:
    """The toggle's role if no shares give it one."""
    if toggle.had_no_effect:
        return "had no effect"
    return "masked" if toggle.masked else "acts"


def _node(node: GraphNode, segment: GraphSegment, marks: _Marks) -> NodeItem:
    return NodeItem(
        name=node.role.removeprefix("layers[*]."),
        op=node.op,
        look=_look(node, marks),
        chips=list(_chips(node, marks)),
        says=_error_words(node, segment, marks),
        panel=list(_panel(node, segment, marks)),
    )


def _look(node: GraphNode, marks: _Marks) -> Literal["first", "culprit", "differs", "plain"]:
    if node.role == marks.first:
        return "first"
    if any(marks.toggles.get(name) == "culprit" for name in node.toggles):
        return "culprit"
    return "differs" if any(choice.differs for choice in node.choices) else "plain"


def _chips(node: GraphNode, marks: _Marks) -> Iterator[Chip]:
    """Short words beside a node for what is special about it."""
    if node.role == marks.first:
        yield Chip(text="starts here", look="c-first")
    elif node.role in marks.roots:
        yield Chip(text="root", look="c-root")
    words = sorted({marks.toggles[name] for name in node.toggles if name in marks.toggles}, key=_ORDER.index)
    yield from (Chip(text=word, look=f"role-{word.replace(' ', '-')}") for word in words[:_CHIPS])


def _error_words(node: GraphNode, segment: GraphSegment, marks: _Marks) -> str:
    layers: tuple[int | None, ...] = segment.layers or (None,)
    errors = [error for layer in layers if (error := marks.errors.get((node.role, layer))) is not None]
    if not errors:
        return ""
    local, carried = (_largest([getattr(error, kind) for error in errors]) for kind in ("local", "carried"))
    return f"local {local}, carried {carried}"


def _largest(sizes: list[Size]) -> str:
    largest = max(size.relative_l2 if size.is_finite else math.inf for size in sizes)
    return "not finite" if not math.isfinite(largest) else "0" if not largest else f"{largest:.1e}"


def _panel(node: GraphNode, segment: GraphSegment, marks: _Marks) -> Iterator[Block]:
    """The panel of a node: its choices on both sides."""
    name = f"{segment.title}.{node.role.removeprefix('layers[*].')}" if segment.layers else node.role
    sentences: list[Phrase] = [(Styled(name, "bold"), f" ({node.op})")]
    if errors := _error_words(node, segment, marks):
        of_layers = ", the largest of these layers" if len(segment.layers) > 1 else ""
        sentences.append(f"Relative L2 error{of_layers}: {errors}.")
    if node.toggles:
        toggles = ", ".join(f"{name} ({marks.toggles.get(name, 'not tried')})" for name in node.toggles)
        sentences.append(f"Toggles: {toggles}.")
    if not node.choices:
        sentences.append("It has no choices that take effect.")
    yield lines(*sentences)
    if node.choices:
        ordered = sorted(node.choices, key=lambda choice: not choice.differs)
        sides = ("reference", "candidate")
        yield table(columns(*sides, first="choice", words=sides), map(_choice, ordered))


def _choice(choice: NodeChoice) -> Row:
    name = f"{choice.name}\ndiffers" if choice.differs else choice.name
    return Row((name, _side(choice.reference), _side(choice.candidate)), style="bold" if choice.differs else "")


def _side(side: SideChoice) -> Cell:
    return (side.value, Styled(f"\n{side.evidence}\n{side.origin}", "dim"))
