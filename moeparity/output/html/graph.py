"""A graph of nodes as HTML: nodes one below the other, edges beside them, and the panel of the chosen node."""

from __future__ import annotations

from collections.abc import Iterator

from markupsafe import Markup

from moeparity.output.figures import GraphPart, NodeGraph, NodeItem
from moeparity.output.html.blocks import markup
from moeparity.output.html.tags import keys, tag

ROW, LANE = 34, 14
"""Pixels between nodes, and between lanes."""


def graph(figure: NodeGraph) -> Markup:
    """The graph with its panels beside it."""
    hint = tag("p", "Choose a node to see the choices of both sides.", class_="t-dim hint")
    parts = [part for number, of in enumerate(figure.parts) for part in (tag("h4", of.title), _part(number, of))]
    panels = [
        _panel(f"n{number}-{row}", node) for number, of in enumerate(figure.parts) for row, node in enumerate(of.nodes)
    ]
    columns = [tag("div", parts, class_="nodes"), tag("div", [hint, *panels], class_="panels")]
    return keys(figure.keys.items()) + tag("div", columns, class_="graph", id="opgraph")


def _part(number: int, part: GraphPart) -> Markup:
    rows = [_row(f"{number}-{row}", node) for row, node in enumerate(part.nodes)]
    return tag("div", [_edges(part), tag("ol", rows)], class_="lanes")


def _row(key: str, node: NodeItem) -> Markup:
    chips = [tag("span", chip.text, class_=f"chip {chip.look}") for chip in node.chips]
    words = [tag("span", node.name, class_="name"), tag("span", node.op, class_="op"), *chips]
    button = tag("button", words, type="button", id=f"b{key}", aria_expanded="false", aria_controls=f"n{key}")
    return tag("li", [button, tag("span", node.says, class_="errors")])


def _panel(key: str, node: NodeItem) -> Markup:
    differs = "differs" if node.look != "plain" else ""
    blocks = [markup(block, f"Choices of {node.name}") for block in node.panel]
    return tag("div", blocks, class_=f"panel {differs}".strip(), id=key, hidden="hidden")


def _edges(part: GraphPart) -> Markup:
    height, lanes = ROW * len(part.nodes), part.lanes
    width = LANE * max(1, lanes.count) + 6
    points = [_point(_x(lanes.nodes[row]), _y(row), node.look) for row, node in enumerate(part.nodes)]
    drawn = [*_trunks(part), *_branches(part), *points]
    return tag("svg", drawn, width=width, height=height, class_="edges", aria_hidden="true", focusable="false")


def _trunks(part: GraphPart) -> Iterator[Markup]:
    rows = len(part.nodes)
    for trunk in part.lanes.trunks:
        start = 0 if trunk.start < 0 else _y(trunk.start)
        end = ROW * rows if trunk.end >= rows else _y(trunk.end)
        ends_in = trunk.end < rows and part.lanes.nodes[trunk.end] != trunk.lane
        yield tag("path", d=f"M{_x(trunk.lane)} {start}V{end - ROW / 2 * ends_in:g}", class_="edge")


def _branches(part: GraphPart) -> Iterator[Markup]:
    for branch in part.lanes.branches:
        x, y, target = _x(branch.source), _y(branch.row), _x(branch.target)
        curve = f"M{x} {y - ROW / 2:g}C{x} {y - 2} {target} {y - ROW / 2:g} {target} {y}"
        yield tag("path", d=curve, class_="edge unread" if branch.unread else "edge")


def _point(x: int, y: float, look: str) -> Markup:
    """A node's point: a circle, filled if a choice differs there; a square for a culprit, a diamond for the first
    root.
    """
    if look == "first":
        return tag("path", d=f"M{x} {y - 8:g}l8 8l-8 8l-8 -8z", class_="point first")
    if look == "culprit":
        return tag("rect", x=x - 6, y=f"{y - 6:g}", width=12, height=12, class_="point culprit")
    return tag("circle", cx=x, cy=f"{y:g}", r=5, class_=f"point {look}")


def _x(lane: int) -> int:
    return LANE * lane + 10


def _y(row: int) -> float:
    return ROW * row + ROW / 2
