"""Figures as data: series over an axis, strips, a graph of nodes, plots with scripts of their own."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from moeparity.output.blocks import Block, Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A value at each place of an axis. low, high: the interval there, if the line has intervals.

    A value that is not finite is not drawn; `Series.words` tell it.
    """

    label: str
    values: Sequence[float]
    look: Literal["line", "points", "spikes", "bars"] = "line"
    low: Sequence[float] = ()
    high: Sequence[float] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Series(Figure):
    """Lines over one axis.

    name: of the figure on its page. label: what a screen reader says. x: increasing positions; `ticks` name them if
    they are not numbers. words: lines of text for each position. bound: a horizontal line with its label. reach: the
    ends of a linear y axis; None: those of the values. note: a sentence below. chart: what a terminal shows instead, if
    anything.
    """

    name: str
    label: str
    x: Sequence[float]
    x_label: str
    y_label: str
    lines: Sequence[Line]
    words: Sequence[Sequence[str]]
    ticks: Sequence[str] = ()
    bound: tuple[str, float] | None = None
    reach: tuple[float, float] | None = None
    note: str = ""
    chart: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Span:
    """A bar from one value to another; `look` is one of the style sheet's."""

    start: float
    end: float
    look: str


@dataclass(frozen=True, slots=True)
class Whisker:
    """An interval. An infinite end is drawn without a stop; NaN draws nothing."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Dot:
    """A value; nothing is drawn if it is not finite."""

    value: float
    look: str


@dataclass(frozen=True, slots=True)
class Across:
    """A line across a strip at one value, such as a gate."""

    value: float
    look: str


Mark = Span | Whisker | Dot | Across


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """A row of marks after its name; a table has its numbers. says: a line below the name."""

    name: str
    marks: Sequence[Mark]
    says: str = ""
    look: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Strips(Figure):
    """Strips over one axis, which contains 0 and the values `over`. unit: of the axis; digits: format of its ticks.

    keys: look -> what it means. note: a sentence below.
    """

    strips: Sequence[Strip]
    over: Sequence[float]
    unit: str
    digits: str = ".3g"
    keys: Mapping[str, str] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A control above a plot: a button known to the script as `key`, or a choice whose list the script makes."""

    key: str
    text: str
    label: str = ""
    kind: Literal["button", "toggle", "choice"] = "button"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot(Figure):
    """A figure that a script of its own draws from `data`, at the place called `name`.

    keys: look -> what it means. below: looks of what the script writes below the plot; empty if it writes nothing.
    """

    name: str
    label: str
    data: Mapping[str, Any] | None = None
    keys: Mapping[str, str] = field(default_factory=dict)
    tools: Sequence[Tool] = ()
    below: Mapping[str, str] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """A short word beside a node; `look` is one of the style sheet's."""

    text: str
    look: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeItem:
    """A node of a drawn graph: name, op, look of its point, short words beside it (`chips`, `says`), and the panel that
    is shown when it is chosen.
    """

    name: str
    op: str
    look: Literal["first", "culprit", "differs", "plain"]
    chips: Sequence[Chip]
    says: str
    panel: Sequence[Block]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trunk:
    """A value's way down the graph: its lane, the row that makes it (-1: it comes from above), and the last row that
    reads it (the number of rows: it goes on below).
    """

    lane: int
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """The place where a node reads a value from another lane. unread: no side reads it."""

    row: int
    source: int
    target: int
    unread: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Lanes:
    """The lane of each row's node, the trunks of the values, the branches from them, and the number of lanes."""

    nodes: tuple[int, ...]
    trunks: tuple[Trunk, ...]
    branches: tuple[Branch, ...]
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphPart:
    """Nodes one below the other, with the edges beside them."""

    title: str
    nodes: Sequence[NodeItem]
    lanes: Lanes


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGraph(Figure):
    """A graph of nodes, of which one is chosen at a time. keys: look -> what it means."""

    parts: Sequence[GraphPart]
    keys: Mapping[str, str]


def drawable(values: Iterable[float]) -> list[float | None]:
    """Values for a script, with None for those that are not finite."""
    return [value if math.isfinite(value) else None for value in values]


LOG_FROM: float = 5.0
"""If values spread by this factor or more, the axis of a series is logarithmic."""


def place_of_zero(lines: Sequence[Line]) -> float | None:
    """Where 0 stands on a logarithmic axis, which is a decade below the smallest value; None for a linear axis."""
    values = [value for line in lines for value in line.values if math.isfinite(value)]
    tops = [value for line in lines for value in (*line.values, *line.high) if math.isfinite(value)]
    positive = [value for value in values if value > 0]
    if not positive or min(values) < 0 or max(tops) < LOG_FROM * min(positive):
        return None
    return 10.0 ** (math.floor(math.log10(min(positive))) - 1)
