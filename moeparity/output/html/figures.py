"""Figures as HTML: strips and graphs are drawn here, series and plots by the page's scripts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup

from moeparity.output.blocks import Figure
from moeparity.output.figures import (
    Across,
    Dot,
    Mark,
    NodeGraph,
    Plot,
    Series,
    Span,
    Strip,
    Strips,
    Tool,
    Whisker,
    drawable,
    place_of_zero,
)
from moeparity.output.html.graph import graph
from moeparity.output.html.packing import packed
from moeparity.output.html.tags import EMPTY, keys, note, tag

KEY = "series-"
"""The key of a series' data is this and its name."""
LOOKS = 6
"""The style sheet has this many looks of lines; further lines start again from the first."""


def drawn(figure: Figure) -> tuple[Markup, Mapping[str, Any]]:
    """The figure's place on the page, with whatever is drawn here, and the data for scripts by key.

    Raises TypeError for a kind of figure that can't be drawn.
    """
    if isinstance(figure, Series):
        return _series(figure)
    if isinstance(figure, Strips):
        return _strips(figure), {}
    if isinstance(figure, Plot):
        return _plot(figure), {} if figure.data is None else {figure.name: _packed(figure.data)}
    if isinstance(figure, NodeGraph):
        return graph(figure), {}
    raise TypeError(f"{type(figure).__name__} has no picture")


def _packed(data: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: packed(part) if isinstance(part, np.ndarray) else part for name, part in data.items()}


def _place(name: str, label: str, tools: Markup = EMPTY) -> Markup:
    """The element that a script draws a figure into, with a line of text about the point under the cursor. The keyboard
    can reach it. `tools` are the controls above it.
    """
    canvas = tag(
        "div",
        id=f"plot-{name}",
        class_="plot",
        tabindex="0",
        role="application",
        aria_label=f"{label}. Arrow keys move.",
    )
    readout = tag("p", "Point at it, or use the arrow keys.", id=f"say-{name}", class_="say", aria_live="polite")
    return tools + canvas + readout


def _plot(plot: Plot) -> Markup:
    body = keys(plot.keys.items()) + _place(plot.name, plot.label, _tools(plot))
    if plot.below:
        body += keys(plot.below.items()) + tag("div", id="text", class_="text")
    return body + note(plot.note)


def _tools(plot: Plot) -> Markup:
    if not plot.tools:
        return EMPTY
    label = f"Controls of {plot.label}"
    parts = [part for tool in plot.tools for part in _tool(tool)]
    return tag("div", parts, class_="tools", id=f"tools-{plot.name}", role="group", aria_label=label)


def _tool(tool: Tool) -> list[Markup]:
    if tool.kind == "choice":
        return [tag("label", tool.text, for_=tool.key), tag("select", id=tool.key)]
    if tool.kind == "toggle":
        return [tag("button", tool.text, type="button", id=tool.key, aria_pressed="false")]
    return [tag("button", tool.text, type="button", aria_label=tool.label or tool.text, data_tool=tool.key)]


def _series(series: Series) -> tuple[Markup, Mapping[str, Any]]:
    # A legend that only repeats the axis is left out.
    labelled = [(index, line) for index, line in enumerate(series.lines) if line.label != series.y_label]
    looks = [(f"series{index % LOOKS} {line.look}", line.label) for index, line in labelled]
    looks += [] if series.bound is None else [("bound", series.bound[0])]
    name = f"{KEY}{series.name}"
    data = {
        "x": list(series.x),
        "labels": [series.x_label, series.y_label],
        "ticks": list(series.ticks),
        "lines": [
            {
                "look": line.look,
                "values": drawable(line.values),
                "low": drawable(line.low),
                "high": drawable(line.high),
            }
            for line in series.lines
        ],
        "bound": None if series.bound is None else series.bound[1],
        "reach": series.reach,
        "zero": None if series.reach else place_of_zero(series.lines),
        "words": [list(lines) for lines in series.words],
    }
    return keys(looks) + _place(name, series.label) + note(series.note), {name: data}


def _strips(figure: Strips) -> Markup:
    scale = Scale.over(figure.over)
    table = tag("table", tag("tbody", [_row(strip, scale) for strip in figure.strips]), class_="bars")
    return keys(figure.keys.items()) + table + _axis(scale, figure.unit, figure.digits) + note(figure.note)


def _row(strip: Strip, scale: Scale) -> Markup:
    marks = [part for mark in strip.marks for part in _mark(mark, scale)]
    # Hidden from screen readers, since a table has the row's numbers.
    picture = tag("svg", marks, class_="strip", aria_hidden="true", focusable="false")
    name = [tag("span", strip.name, class_="name"), *([tag("small", strip.says)] if strip.says else [])]
    cells = [tag("th", name, scope="row"), tag("td", picture, class_="drawn")]
    return tag("tr", cells, class_=strip.look or None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """A linear scale over the width of a strip. The SVG has no view box, so positions are percentages."""

    low: float
    high: float

    @classmethod
    def over(cls, values: Iterable[float]) -> Scale:
        """The scale that contains 0 and all finite values, with some room."""
        finite = [0.0, *(value for value in values if math.isfinite(value))]
        low, high = min(finite), max(finite)
        room = 0.04 * ((high - low) or 1.0)
        return cls(low=low - room if low < 0 else 0.0, high=high + room)

    def at(self, value: float) -> str:
        """The position of a value, such as `12.5%`; values outside are put at the edge."""
        part = (value - self.low) / (self.high - self.low)
        return f"{100 * min(1.0, max(0.0, part)):.3f}%"

    def width(self, start: float, end: float) -> str:
        """The distance between two values, as a percentage."""
        return f"{abs(float(self.at(end)[:-1]) - float(self.at(start)[:-1])):.3f}%"

    @property
    def ticks(self) -> list[float]:
        """About five round values."""
        step = 10.0 ** math.floor(math.log10((self.high - self.low) / 4))
        step *= next(factor for factor in (1, 2, 2.5, 5, 10) if (self.high - self.low) / (step * factor) <= 6)
        first = math.ceil(self.low / step)
        return [step * i for i in range(first, math.floor(self.high / step) + 1)]


def _mark(mark: Mark, scale: Scale) -> Sequence[Markup]:
    match mark:
        case Span(start, end, look):
            width = scale.width(start, end)
            return [tag("rect", x=scale.at(min(start, end)), y="25%", width=width, height="50%", class_=f"bar {look}")]
        case Whisker(low, high):
            return _whisker(low, high, scale)
        case Dot(value, look):
            dot = (
                tag("circle", cx=scale.at(value), cy="50%", r="5", class_=f"dot {look}")
                if math.isfinite(value)
                else EMPTY
            )
            return [dot]
        case Across(value, look):
            return [tag("line", x1=scale.at(value), x2=scale.at(value), y1="0", y2="100%", class_=f"mark {look}")]


def _whisker(low: float, high: float, scale: Scale) -> Sequence[Markup]:
    if math.isnan(low) or math.isnan(high):
        return []
    ends = [value for value in (low, high) if math.isfinite(value)]
    low, high = (low if math.isfinite(low) else scale.low), (high if math.isfinite(high) else scale.high)
    line = tag("line", x1=scale.at(low), x2=scale.at(high), y1="50%", y2="50%", class_="whisker")
    stops = [tag("line", x1=scale.at(end), x2=scale.at(end), y1="30%", y2="70%", class_="whisker") for end in ends]
    return [line, *stops]


def _axis(scale: Scale, unit: str, digits: str) -> Markup:
    """The axis: ticks with their numbers, and the unit."""
    parts = []
    for tick in scale.ticks:
        edge = float(scale.at(tick)[:-1])
        anchor = "start" if edge < 4 else "end" if edge > 96 else "middle"
        parts.append(tag("line", x1=scale.at(tick), x2=scale.at(tick), y1="0", y2="5", class_="tick"))
        parts.append(tag("text", f"{tick:{digits}}", x=scale.at(tick), y="18", text_anchor=anchor))
    picture = tag("svg", parts, class_="axis", aria_hidden="true", focusable="false")
    return picture + tag("div", unit, class_="unit")
