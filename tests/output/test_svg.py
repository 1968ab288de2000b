"""The small picture: as long as its numbers say, and nothing in it that runs or is fetched."""

from __future__ import annotations

import math
from xml.etree import ElementTree as ET

import pytest

from moeparity.output.svg import Bar, bars

SVG = "{http://www.w3.org/2000/svg}"


def widths(picture: str) -> list[float]:
    return [float(str(rect.get("width"))) for rect in ET.fromstring(picture).iter(f"{SVG}rect")][1:]


def drawn(*values: float, log: bool = False) -> list[float]:
    return widths(bars("t", [Bar(name="n", value=value, number=str(value)) for value in values], log=log))


def test_bars_are_as_long_as_their_values() -> None:
    first, second, third, last = drawn(1.0, 0.5, -0.25, 0.0)
    assert second == pytest.approx(first / 2, abs=0.1)
    assert third == pytest.approx(first / 4, abs=0.1)
    assert last == 0
    assert drawn(0.0, 0.0) == [0, 0]
    assert drawn(math.nan, 1.0, math.inf)[0::2] == [0, 0]


def test_on_a_logarithmic_axis_a_decade_is_as_long_everywhere() -> None:
    a, b, c, zero = drawn(1e-1, 1e-2, 1e-3, 0.0, log=True)
    assert a - b == pytest.approx(b - c, abs=0.2) != 0
    assert c > 0 == zero


def test_names_are_text_and_nothing_else() -> None:
    name = '<script>alert(1)</script>"]]>&\x1b[0m\x00\ud800\ufffe' + "x" * 90
    picture = bars(name, [Bar(name=name, value=1.0, number=name)])
    root = ET.fromstring(picture)
    assert {element.tag for element in root.iter()} == {
        f"{SVG}{tag}" for tag in ("svg", "title", "style", "rect", "text")
    }
    assert root.findtext(f"{SVG}title", "").startswith('<script>alert(1)</script>"]]>&\\x1b[0m\\x00\\ud800')
    assert not any(key.lower().startswith("on") or "href" in key for element in root.iter() for key in element.attrib)
    assert "http" not in picture.replace("http://www.w3.org/2000/svg", "")
