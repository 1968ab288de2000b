"""The op graph as shown: nodes one below the other, edges beside them, and a panel with the choices of each node."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from moeparity.bisection.data import ReportData
from moeparity.bisection.divergence.data import NodeError, Size
from moeparity.bisection.graph.data import GraphNode, GraphSegment, NodeChoice, OpGraph, SideChoice
from moeparity.bisection.graph.lanes import lanes
from moeparity.bisection.toggles.data import ToggleResult
from moeparity.output.blocks import Block, Cell, Group, Phrase, Row, Styled, columns, group, lines, table
from moeparity.output.figures import Chip, GraphPart, NodeGraph, NodeItem
from moeparity.plan.address import role

_KEYS = {"first": "it starts here", "culprit": "a culprit", "differs": "a choice differs", "plain": "both sides alike"}
_CHIPS = 1
"""So many words about its toggles stand beside a node; its panel has all of them."""
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
