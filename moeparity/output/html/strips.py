"""Horizontal bars without scripts: SVG without a view box, so that positions are percents and lines stay thin."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from markupsafe import Markup

from moeparity.output.html.markup import tag


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """From `low` to `high` over the width of a strip."""

    low: float
    high: float

    @classmethod
    def over(cls, values: Iterable[float]) -> Scale:
        """What holds 0 and all finite values, with some room."""
        finite = [0.0, *(value for value in values if math.isfinite(value))]
        low, high = min(finite), max(finite)
        room = 0.04 * ((high - low) or 1.0)
        return cls(low=low - room if low < 0 else 0.0, high=high + room)

    def at(self, value: float) -> str:
        """Where a value stands, `12.5%`; what lies outside stands at the edge."""
        part = (value - self.low) / (self.high - self.low)
        return f"{100 * min(1.0, max(0.0, part)):.3f}%"

    def width(self, start: float, end: float) -> str:
        """How wide the way between two values is."""
        return f"{abs(float(self.at(end)[:-1]) - float(self.at(start)[:-1])):.3f}%"

    @property
    def ticks(self) -> list[float]:
        """Round values, about five of them."""
        step = 10.0 ** math.floor(math.log10((self.high - self.low) / 4))
        step *= next(factor for factor in (1, 2, 2.5, 5, 10) if (self.high - self.low) / (step * factor) <= 6)
        first = math.ceil(self.low / step)
        return [step * i for i in range(first, math.floor(self.high / step) + 1)]


def bar(scale: Scale, start: float, end: float, look: str) -> Markup:
    """A bar from one value to another."""
    first = min(start, end)
    return tag("rect", x=scale.at(first), y="25%", width=scale.width(start, end), height="50%", class_=f"bar {look}")


def whisker(scale: Scale, low: float, high: float) -> Markup:
    """An interval; an end that is infinite has no stop, and one that is NaN is no interval."""
    if math.isnan(low) or math.isnan(high):
        return Markup("")
    ends = [value for value in (low, high) if math.isfinite(value)]
    low, high = (low if math.isfinite(low) else scale.low), (high if math.isfinite(high) else scale.high)
    line = tag("line", x1=scale.at(low), x2=scale.at(high), y1="50%", y2="50%", class_="whisker")
    stops = [tag("line", x1=scale.at(end), x2=scale.at(end), y1="30%", y2="70%", class_="whisker") for end in ends]
    return Markup("").join([line, *stops])


def mark(scale: Scale, value: float, look: str) -> Markup:
    """A line across the strip at a value, such as a gate."""
    return tag("line", x1=scale.at(value), x2=scale.at(value), y1="0", y2="100%", class_=f"mark {look}")


def dot(scale: Scale, value: float, look: str) -> Markup:
    """A dot at a value; nothing where it is not finite."""
    if not math.isfinite(value):
        return Markup("")
    return tag("circle", cx=scale.at(value), cy="50%", r="5", class_=f"dot {look}")


def strip(parts: Iterable[Markup]) -> Markup:
    """What is drawn in one row; hidden from those who read, since the row's numbers stand beside it."""
    return tag("svg", parts, class_="strip", aria_hidden="true", focusable="false")


def axis(scale: Scale, unit: str, digits: str = ".3g") -> Markup:
    """Ticks with their numbers, and the unit."""
    parts = []
    for tick in scale.ticks:
        edge = float(scale.at(tick)[:-1])
        anchor = "start" if edge < 4 else "end" if edge > 96 else "middle"
        parts.append(tag("line", x1=scale.at(tick), x2=scale.at(tick), y1="0", y2="5", class_="tick"))
        parts.append(tag("text", f"{tick:{digits}}", x=scale.at(tick), y="18", text_anchor=anchor))
    picture = tag("svg", parts, class_="axis", aria_hidden="true", focusable="false")
    return picture + tag("div", unit, class_="unit")
