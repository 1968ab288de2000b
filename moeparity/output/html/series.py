"""Values over an axis as a picture: lines or points with intervals, a bound, and words for each point."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from moeparity.output.html.markup import tag
from moeparity.output.html.page import Block
from moeparity.output.html.plots import keys, plot

KEY = "series-"
"""What the data of each picture is called by, before its name."""
LOOKS = 6
"""How many looks of lines the style sheet has; further lines begin again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A value at each place of the axis. low, high: its interval there, where lines have one.

    What is not finite is not drawn; the words say it.
    """

    label: str
    values: Sequence[float]
    look: Literal["line", "points", "spikes"] = "line"
    low: Sequence[float] = ()
    high: Sequence[float] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Lines over one axis.

    name: of the picture on its page. label: for those who do not see it. x: places in increasing order, which `ticks`
    name where they are no numbers to be read. words: lines for each place. bound: a line across, with its label.
    reach: the ends of y, on a linear axis; left out, those of what is drawn.
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


def picture(title: str, series: Series, note: str = "") -> Block:
    """The block that the page's scripts draw a series in."""
    looks = [(f"series{index % LOOKS}", line.label) for index, line in enumerate(series.lines)]
    if series.bound is not None:
        looks.append(("bound", series.bound[0]))
    body = keys(looks) + plot(f"{KEY}{series.name}", series.label)
    body += tag("p", note, class_="t-dim") if note else ""
    return Block(title=title, body=body, data={f"{KEY}{series.name}": _data(series)})


def _data(series: Series) -> dict[str, Any]:
    return {
        "x": list(series.x),
        "labels": [series.x_label, series.y_label],
        "ticks": list(series.ticks),
        "lines": [
            {"look": line.look, "values": _drawn(line.values), "low": _drawn(line.low), "high": _drawn(line.high)}
            for line in series.lines
        ],
        "bound": None if series.bound is None else series.bound[1],
        "reach": series.reach,
        "zero": None if series.reach else _place_of_zero(series.lines),
        "words": [list(lines) for lines in series.words],
    }


def _drawn(values: Iterable[float]) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in values]


def _place_of_zero(lines: Sequence[Line]) -> float | None:
    """Where 0 stands on a log axis, a decade below the least value; None for an axis that is linear."""
    values = [value for line in lines for value in line.values if math.isfinite(value)]
    tops = [value for line in lines for value in (*line.values, *line.high) if math.isfinite(value)]
    positive = [value for value in values if value > 0]
    if not positive or min(values) < 0 or max(tops) < _LOG_FROM * min(positive):
        return None
    return 10.0 ** (math.floor(math.log10(min(positive))) - 1)


_LOG_FROM = 5.0
"""A spread from which on the axis is logarithmic."""
