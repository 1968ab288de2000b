"""One small picture as SVG without scripts: horizontal bars, each with a name and a number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree import ElementTree as ET

from moeparity.output.words import ends, printable

_WIDTH, _ROW, _TOP, _NAMES, _NUMBERS = 640, 18, 34, 260, 110
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#1f2328}.title{font-weight:600}.up{fill:#0969da}.down{fill:#bc4c00}"
    ".back{fill:#fff}@media(prefers-color-scheme:dark){text{fill:#e6edf3}.back{fill:#0d1117}.up{fill:#58a6ff}"
    ".down{fill:#f0883e}}"
)
_LONGEST = 36
_DECADES = 8
"""A logarithmic axis has at most this many decades; a value below them gets a bar of length 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A bar: its name, its value, and the number as printed."""

    name: str
    value: float
    number: str


def bars(title: str, of: Sequence[Bar], *, log: bool = False) -> str:
    """The picture. Values below 0 have another colour; values that are not finite have no bar."""
    size = {"width": str(_WIDTH), "height": str(_TOP + _ROW * len(of) + 8)}
    root = ET.Element("svg", xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {_WIDTH} {size['height']}", role="img")
    root.attrib |= size
    ET.SubElement(root, "title").text = _text(title)
    ET.SubElement(root, "style").text = _STYLE
    ET.SubElement(root, "rect", {"class": "back", **size})
    _write(root, 8, 20, title, {"class": "title"})
    lengths = _lengths([bar.value for bar in of], log=log)
    for row, (bar, length) in enumerate(zip(of, lengths, strict=True)):
        y = _TOP + row * _ROW
        _write(root, _NAMES - 8, y + 12, ends(bar.name, _LONGEST), {"text-anchor": "end"})
        kind = "up" if bar.value >= 0 else "down"
        place = {"x": str(_NAMES), "y": str(y + 2), "width": f"{length:.1f}", "height": str(_ROW - 4)}
        ET.SubElement(root, "rect", {"class": kind, **place})
        _write(root, _NAMES + length + 6, y + 12, bar.number, {})
    return ET.tostring(root, encoding="unicode")


def _lengths(values: Sequence[float], *, log: bool) -> list[float]:
    """The length of each bar, in pixels."""
    room = _WIDTH - _NAMES - _NUMBERS
    sizes = [abs(value) if math.isfinite(value) else 0.0 for value in values]
    most = max(sizes, default=0.0)
    if not most:
        return [0.0 for _ in sizes]
    if not log:
        return [room * size / most for size in sizes]
    least = min((size for size in sizes if size), default=most)
    decades = min(_DECADES, math.log10(most / least) + 1)
    return [room * max(0.0, 1 + math.log10(size / most) / decades) if size else 0.0 for size in sizes]


def _write(root: ET.Element, x: float, y: float, text: str, attributes: dict[str, str]) -> None:
    ET.SubElement(root, "text", {"x": f"{x:.1f}", "y": f"{y:.1f}", **attributes}).text = _text(text)


def _text(text: str) -> str:
    return " ".join(printable(text).replace("\ufffe", "").replace("\uffff", "").split())
