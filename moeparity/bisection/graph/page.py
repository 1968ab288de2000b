"""The op graph on the page: nodes below each other, edges beside them, the choices of the one that is chosen."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from markupsafe import Markup

from moeparity.bisection.divergence.report import NodeError
from moeparity.bisection.graph.lanes import Lanes, lanes
from moeparity.bisection.graph.report import GraphNode, GraphSegment, NodeChoice, OpGraph
from moeparity.bisection.report import Report
from moeparity.bisection.sections import Figures
from moeparity.bisection.toggles.report import ToggleResult
from moeparity.output.html.markup import tag
from moeparity.output.html.page import Block
from moeparity.output.html.plots import legend
from moeparity.plan.address import role

_KEYS = {"first": "it starts here", "culprit": "a culprit", "differs": "a choice differs", "plain": "both sides alike"}

ROW, LANE = 34, 14
"""Pixels from node to node, and from lane to lane."""


_CHIPS = 1
"""Of what the toggles of a node do, so many words are shown beside it; the panel has all."""

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
"""Roles of toggles, and what they do where there are no shares: what matters most first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Marks:
    """What a report says of nodes, by role: where it starts, other roots, toggles by their role, errors."""

    first: str
    roots: frozenset[str]
    toggles: Mapping[str, str]
    errors: Mapping[tuple[str, int | None], NodeError]


def _graph(report: Report) -> Figures:
    if report.graph is None:
        return
    marks = _marks(report)
    goes_on = _goes_on(report.graph)
    parts = []
    panels = []
    for number, segment in enumerate(report.graph.segments):
        parts.append(tag("h4", segment.title))
        parts.append(_segment(number, segment, lanes(segment, goes_on), marks))
        panels += [_panel(f"n{number}-{row}", node, segment, marks) for row, node in enumerate(segment.nodes)]
    hint = tag("p", "Choose a node to see the choices of both sides.", class_="t-dim hint")
    body = legend(_KEYS) + tag(
        "div",
        [tag("div", parts, class_="nodes"), tag("div", [hint, *panels], class_="panels")],
        class_="graph",
        id="opgraph",
    )
    yield Block(title="", body=body)


def _goes_on(graph: OpGraph) -> frozenset[str]:
    """Roles that are read in another segment than their own, or in the next layer."""
    segment_of = {node.role: number for number, segment in enumerate(graph.segments) for node in segment.nodes}
    return frozenset(
        read.source
        for number, segment in enumerate(graph.segments)
        for node in segment.nodes
        for read in node.reads
        if read.next_layer or segment_of.get(read.source) != number
    )


def _marks(report: Report) -> _Marks:
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
    """What a toggle does where no shares say its role."""
    if toggle.had_no_effect:
        return "had no effect"
    return "masked" if toggle.masked else "acts"


def _segment(number: int, segment: GraphSegment, drawn: Lanes, marks: _Marks) -> Markup:
    rows = []
    for row, node in enumerate(segment.nodes):
        button = tag(
            "button",
            [tag("span", _short(node), class_="name"), tag("span", node.op, class_="op"), *_chips(node, marks)],
            type="button",
            id=f"b{number}-{row}",
            aria_expanded="false",
            aria_controls=f"n{number}-{row}",
        )
        rows.append(tag("li", [button, tag("span", _error_words(node, segment, marks), class_="errors")]))
    return tag("div", [_edges(segment, drawn, marks), tag("ol", rows)], class_="lanes")


def _short(node: GraphNode) -> str:
    return node.role.removeprefix("layers[*].")


def _look(node: GraphNode, marks: _Marks) -> str:
    if node.role == marks.first:
        return "first"
    if any(marks.toggles.get(name) == "culprit" for name in node.toggles):
        return "culprit"
    return "differs" if any(choice.differs for choice in node.choices) else "plain"


def _chips(node: GraphNode, marks: _Marks) -> Iterator[Markup]:
    """Short words for what is special about a node."""
    if node.role == marks.first:
        yield tag("span", "starts here", class_="chip c-first")
    elif node.role in marks.roots:
        yield tag("span", "root", class_="chip c-root")
    words = sorted({marks.toggles[name] for name in node.toggles if name in marks.toggles}, key=_ORDER.index)
    for word in words[:_CHIPS]:
        yield tag("span", word, class_=f"chip role-{word.replace(' ', '-')}")


def _edges(segment: GraphSegment, drawn: Lanes, marks: _Marks) -> Markup:
    height = ROW * len(segment.nodes)
    parts = []
    for trunk in drawn.trunks:
        start = 0 if trunk.start < 0 else _y(trunk.start)
        end = height if trunk.end >= len(segment.nodes) else _y(trunk.end)
        ends_in = trunk.end < len(segment.nodes) and drawn.nodes[trunk.end] != trunk.lane
        parts.append(tag("path", d=f"M{_x(trunk.lane)} {start}V{end - ROW / 2 * ends_in:g}", class_="edge"))
    for branch in drawn.branches:
        x, y, target = _x(branch.source), _y(branch.row), _x(branch.target)
        curve = f"M{x} {y - ROW / 2:g}C{x} {y - 2} {target} {y - ROW / 2:g} {target} {y}"
        parts.append(tag("path", d=curve, class_="edge unread" if branch.unread else "edge"))
    for row, node in enumerate(segment.nodes):
        parts.append(_point(_x(drawn.nodes[row]), _y(row), _look(node, marks)))
    width = LANE * max(1, drawn.count) + 6
    return tag("svg", parts, width=width, height=height, class_="edges", aria_hidden="true", focusable="false")


def _point(x: int, y: float, look: str) -> Markup:
    """A node: a circle, filled where a choice differs, a square of a culprit, a diamond where it starts."""
    if look == "first":
        return tag("path", d=f"M{x} {y - 8:g}l8 8l-8 8l-8 -8z", class_="point first")
    if look == "culprit":
        return tag("rect", x=x - 6, y=f"{y - 6:g}", width=12, height=12, class_="point culprit")
    return tag("circle", cx=x, cy=f"{y:g}", r=5, class_=f"point {look}")


def _x(lane: int) -> int:
    return LANE * lane + 10


def _y(row: int) -> float:
    return ROW * row + ROW / 2


def _errors(node: GraphNode, segment: GraphSegment, marks: _Marks) -> list[NodeError]:
    layers: tuple[int | None, ...] = segment.layers or (None,)
    return [error for layer in layers if (error := marks.errors.get((node.role, layer))) is not None]


def _error_words(node: GraphNode, segment: GraphSegment, marks: _Marks) -> str:
    errors = _errors(node, segment, marks)
    if not errors:
        return ""
    local, carried = (_largest([getattr(error, kind) for error in errors]) for kind in ("local", "carried"))
    return f"local {local}, carried {carried}"


def _largest(sizes: list[object]) -> str:
    values = [size.relative_l2 if size.is_finite else math.inf for size in sizes]  # type: ignore[attr-defined]
    largest = max(values)
    return "not finite" if not math.isfinite(largest) else "0" if not largest else f"{largest:.1e}"


def _panel(key: str, node: GraphNode, segment: GraphSegment, marks: _Marks) -> Markup:
    """A node's choices on both sides."""
    name = f"{segment.title}.{_short(node)}" if segment.layers else node.role
    errors = _error_words(node, segment, marks)
    many = len(segment.layers) > 1 and errors
    lines = [tag("h5", [tag("span", name), tag("span", f" ({node.op})", class_="op")])]
    if errors:
        lines.append(tag("p", f"Relative L2 error{', the largest of these layers' if many else ''}: {errors}."))
    if node.toggles:
        toggles = ", ".join(f"{name} ({marks.toggles.get(name, 'not tried')})" for name in node.toggles)
        lines.append(tag("p", f"Toggles: {toggles}."))
    if node.choices:
        ordered = sorted(node.choices, key=lambda choice: not choice.differs)
        head = tag("tr", [tag("th", word, scope="col") for word in ("choice", "reference", "candidate")])
        body = [_choice(choice) for choice in ordered]
        lines.append(
            tag(
                "div",
                tag("table", [tag("thead", head), tag("tbody", body)]),
                class_="scroll",
                tabindex="0",
                role="region",
                aria_label=f"Choices of {name}",
            )
        )
    else:
        lines.append(tag("p", "It has no choices that take effect."))
    differs = "differs" if any(choice.differs for choice in node.choices) else None
    return tag("div", lines, class_=f"panel {differs or ''}".strip(), id=key, hidden="hidden")


def _choice(choice: NodeChoice) -> Markup:
    sides = [
        tag("td", [tag("b", side.value), tag("small", side.evidence), tag("small", side.origin, class_="origin")])
        for side in (choice.reference, choice.candidate)
    ]
    name = [tag("span", choice.name), *([tag("small", "differs")] if choice.differs else [])]
    return tag("tr", [tag("th", name, scope="row"), *sides], class_="differs" if choice.differs else None)


FIGURES = {"graph": _graph}
