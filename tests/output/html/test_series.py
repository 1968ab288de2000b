"""What a page's scripts are handed of a series: what is not finite is left out, 0 has a place on a log axis."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from moeparity.output.html.packing import script_data
from moeparity.output.html.series import LOOKS, Line, Series, picture

NAN = math.nan


def data(*lines: Line, reach: tuple[float, float] | None = None) -> dict[str, Any]:
    x = range(len(lines[0].values))
    series = Series(
        name="some",
        label="k3",
        x=x,
        x_label="step",
        y_label="k3",
        lines=lines,
        words=[["word"] for _ in x],
        reach=reach,
    )
    content: dict[str, Any] = json.loads(script_data(picture("Some", series).data))["series-some"]
    return content


def line(*values: float, high: tuple[float, ...] = ()) -> Line:
    return Line(label="k3", values=values, high=high)


def test_what_is_not_finite_is_not_drawn_and_stands_in_no_script() -> None:
    (drawn,) = data(line(1.0, NAN, math.inf, high=(2.0, math.inf, NAN)))["lines"]
    assert drawn["values"] == [1.0, None, None]
    assert drawn["high"] == [2.0, None, None]


@pytest.mark.parametrize(
    ("values", "zero"),
    [
        ((1e-3, 2e-3), None),
        ((1e-3, 0.2), 1e-4),
        ((0.0, 3e-6, 5e-3), 1e-7),
        ((-1e-3, 0.2), None),
        ((0.0, 0.0), None),
        ((NAN, NAN), None),
    ],
)
def test_zero_stands_below_the_least_value_of_a_wide_spread(values: tuple[float, ...], zero: float | None) -> None:
    assert data(line(*values))["zero"] == (None if zero is None else pytest.approx(zero))


def test_a_wide_interval_makes_the_axis_logarithmic_and_a_given_reach_linear() -> None:
    wide = line(1e-3, 2e-3, high=(2e-3, 0.5))
    assert data(wide)["zero"] == pytest.approx(1e-4)
    assert data(wide, reach=(0.0, 1.0))["zero"] is None


def test_more_lines_than_looks_keep_their_names() -> None:
    lines = [Line(label=f"batch {number}", values=(1.0,)) for number in range(LOOKS + 2)]
    series = Series(name="some", label="k3", x=[0], x_label="x", y_label="y", lines=lines, words=[["word"]])
    body = str(picture("Some", series).body)
    assert [f"batch {number}" in body for number in range(LOOKS + 2)] == [True] * (LOOKS + 2)
    assert body.count("k-series0") == 2
