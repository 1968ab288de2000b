"""Pictures: what a page's scripts are handed of a series, and what is drawn here of strips and graphs."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, replace
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from moeparity.output.blocks import Figure, lines
from moeparity.output.figures import (
    Across,
    Branch,
    Chip,
    Dot,
    GraphPart,
    Lanes,
    Line,
    Mark,
    NodeGraph,
    NodeItem,
    Plot,
    Series,
    Span,
    Strip,
    Strips,
    Tool,
    Trunk,
    Whisker,
)
from moeparity.output.html.figures import LOOKS, Scale, drawn
from moeparity.output.html.packing import script_data

NAN, INF = math.nan, math.inf
SPOILT = '<b onclick="x">&\x1b[31m\u202e'


def data(*lines: Line, reach: tuple[float, float] | None = None) -> dict[str, Any]:
    x = range(len(lines[0].values))
    series = Series(
        title="Some",
        name="some",
        label="k3",
        x=x,
        x_label="step",
        y_label="k3",
        lines=lines,
        words=[["word"] for _ in x],
        reach=reach,
    )
    content: dict[str, Any] = json.loads(script_data(drawn(series)[1]))["series-some"]
    return content


def line(*values: float, high: tuple[float, ...] = ()) -> Line:
    return Line(label="k3", values=values, high=high)


def test_what_is_not_finite_is_not_drawn_and_stands_in_no_script() -> None:
    (of,) = data(line(1.0, NAN, math.inf, high=(2.0, math.inf, NAN)))["lines"]
    assert of["values"] == [1.0, None, None]
    assert of["high"] == [2.0, None, None]


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
    series = Series(
        title="Some", name="some", label="k3", x=[0], x_label="x", y_label="y", lines=lines, words=[["word"]]
    )
    body = str(drawn(series)[0])
    assert [f"batch {number}" in body for number in range(LOOKS + 2)] == [True] * (LOOKS + 2)
    assert body.count("k-series0") == 2


def test_a_legend_that_only_repeats_the_axis_is_left_out() -> None:
    line = Line(label="tokens", values=(1.0,), look="bars")
    figure = Series(
        title="Some", name="some", label="k3", x=[0], x_label="x", y_label="tokens", lines=[line], words=[["word"]]
    )
    assert "k-series0" not in str(drawn(figure)[0])
    assert "key k-series0 bars" in str(drawn(replace(figure, y_label="count"))[0])


def test_a_series_has_its_bound_its_note_and_a_place_that_keys_reach() -> None:
    series = Series(
        title="Some",
        name="some",
        label="k3 by step",
        x=[0],
        x_label="step",
        y_label="k3",
        lines=[line(1.0)],
        words=[["one"]],
        ticks=["first"],
        bound=("the gate", 1e-4),
        note="of 2 steps",
    )
    body, of = drawn(series)
    assert '<span class="key k-bound">the gate</span>' in body
    assert 'id="plot-series-some" class="plot" tabindex="0" role="application"' in body
    assert 'aria-label="k3 by step. Arrow keys move."' in body
    assert 'id="say-series-some"' in body
    assert body.endswith('<p class="t-dim">of 2 steps</p>')
    assert of["series-some"]["bound"] == 1e-4
    assert (of["series-some"]["labels"], of["series-some"]["ticks"]) == (["step", "k3"], ["first"])


def test_a_scale_holds_nought_and_its_values() -> None:
    scale = Scale.over([3.0, -1.0, float("inf")])
    assert (scale.low < -1.0, scale.high > 3.0) == (True, True)
    assert 0.0 in scale.ticks
    assert Scale.over([]).ticks
    assert Scale.over([2.0]).low == 0.0


def test_a_scale_is_in_percents_and_what_lies_outside_stands_at_its_edge() -> None:
    scale = Scale(low=0.0, high=4.0)
    assert [scale.at(value) for value in (0.0, 1.0, 4.0)] == ["0.000%", "25.000%", "100.000%"]
    assert [scale.at(value) for value in (-1.0, 9.0)] == ["0.000%", "100.000%"]
    assert scale.width(3.0, 1.0) == scale.width(1.0, 3.0) == "50.000%"


@pytest.mark.parametrize("values", [[1e-9], [5.0], [0.0], [-3.0, 7.0], [1e5, -1e5], [0.3]])
def test_ticks_are_few_round_and_within(values: list[float]) -> None:
    scale = Scale.over(values)
    assert 2 <= len(scale.ticks) <= 7
    assert all(scale.low <= tick <= scale.high for tick in scale.ticks)
    step = scale.ticks[1] - scale.ticks[0]
    assert np.diff(scale.ticks) == pytest.approx(step)
    assert min(abs(step / 10.0 ** math.floor(math.log10(step * 1.001)) - round_) for round_ in (1, 2, 2.5, 5)) < 1e-6


def marks(*of: Mark, over: tuple[float, ...] = (0.0, 100 / 1.04)) -> list[ET.Element]:
    """What is drawn of the marks of one strip, by default over 0 to 100."""
    figure = Strips(title="Some", strips=[Strip(name="one", marks=of)], over=over, unit="nats")
    (picture,) = re.findall(r'<svg class="strip".*?</svg>', drawn(figure)[0])
    return list(ET.fromstring(picture))


def test_a_span_goes_from_one_value_to_the_other_in_either_order() -> None:
    for span in (Span(25.0, 75.0, "share"), Span(75.0, 25.0, "share")):
        (bar,) = marks(span)
        assert (bar.tag, bar.get("class")) == ("rect", "bar share")
        assert (bar.get("x"), bar.get("width")) == ("25.000%", "50.000%")


@pytest.mark.parametrize(
    ("low", "high", "ends", "stops"),
    [
        (25.0, 75.0, ("25.000%", "75.000%"), 2),
        (-INF, 75.0, ("0.000%", "75.000%"), 1),
        (25.0, INF, ("25.000%", "100.000%"), 1),
        (-INF, INF, ("0.000%", "100.000%"), 0),
    ],
)
def test_an_end_without_bound_has_no_stop(low: float, high: float, ends: tuple[str, str], stops: int) -> None:
    whole, *others = marks(Whisker(low, high))
    assert (whole.get("x1"), whole.get("x2")) == ends
    assert len(others) == stops
    assert all(stop.get("x1") == stop.get("x2") for stop in others)


@pytest.mark.parametrize("mark", [Whisker(NAN, 1.0), Whisker(1.0, NAN), Dot(NAN, "a"), Dot(INF, "a")])
def test_what_is_no_number_is_not_drawn(mark: Mark) -> None:
    assert marks(mark) == []


def test_dots_and_lines_across_stand_at_their_values() -> None:
    dot, across = marks(Dot(25.0, "restored"), Across(75.0, "gate"))
    assert (dot.tag, dot.get("cx"), dot.get("class")) == ("circle", "25.000%", "dot restored")
    assert (across.tag, across.get("x1"), across.get("x2")) == ("line", "75.000%", "75.000%")
    assert across.get("class") == "mark gate"


def test_strips_have_their_names_and_an_axis() -> None:
    rows = [
        Strip(name=SPOILT, marks=[], says="alone", look="whole"),
        Strip(name="two", marks=[]),
    ]
    figure = Strips(
        title="Some", strips=rows, over=[1.0], unit="nats", digits=".1f", keys={"gate": "the gate"}, note="a note"
    )
    body, of = drawn(figure)
    assert of == {}
    assert "<b onclick" not in body
    first, second = re.findall(r"<tr.*?</tr>", body)
    assert first.startswith('<tr class="whole"><th scope="row"><span class="name">&lt;b onclick')
    assert "<small>alone</small>" in first
    assert second.startswith('<tr><th scope="row"><span class="name">two</span></th>')
    assert second.endswith(
        '</th><td class="drawn"><svg class="strip" aria-hidden="true" focusable="false"></svg></td></tr>'
    )
    assert re.findall(r"<text [^>]*>(.*?)</text>", body) == [f"{tick:.1f}" for tick in Scale.over([1.0]).ticks]
    assert '<div class="unit">nats</div>' in body
    assert '<span class="key k-gate">the gate</span>' in body
    assert body.endswith('<p class="t-dim">a note</p>')


def test_a_plot_has_its_controls_and_its_data_by_its_name() -> None:
    values = np.array([[1.0, 2.0]], dtype=np.float32)
    plot = Plot(
        title="Tokens",
        name="tokens",
        label="each token",
        data={"k3": values, "powers": [1, 2]},
        keys={"pad": "padding"},
        tools=[
            Tool(key="zoom", text="+", label="larger"),
            Tool(key="pads", text="Padding", kind="toggle"),
            Tool(key="which", text="Sequence", kind="choice"),
        ],
        below={"most": "most of it"},
        note="of 2 tokens",
    )
    body, of = drawn(plot)
    assert of["tokens"]["powers"] == [1, 2]
    assert of["tokens"]["k3"]["shape"] == [1, 2]
    json.loads(script_data(of))
    assert '<span class="key k-pad">padding</span>' in body
    assert 'class="tools" id="tools-tokens" role="group" aria-label="Controls of each token"' in body
    assert '<button type="button" aria-label="larger" data-tool="zoom">+</button>' in body
    assert '<button type="button" id="pads" aria-pressed="false">Padding</button>' in body
    assert '<label for="which">Sequence</label><select id="which"></select>' in body
    assert body.index("tools-tokens") < body.index("plot-tokens") < body.index("k-most") < body.index('id="text"')
    assert body.endswith('<p class="t-dim">of 2 tokens</p>')


def test_a_plot_of_nothing_else_is_a_place() -> None:
    body, of = drawn(Plot(title="Tokens", name="tokens", label="each token"))
    assert of == {}
    assert body.startswith('<div id="plot-tokens"')
    assert not [part for part in ("tools", 'class="keys"', 'id="text"') if part in body]


CHIPS = [Chip(text=SPOILT, look="starts")]
ITEMS = [
    NodeItem(name="a", op="embed", look="plain", chips=[], says="equal", panel=[lines("of a")]),
    NodeItem(name=SPOILT, op="norm", look="first", chips=CHIPS, says="2e-4", panel=[lines("of b")]),
    NodeItem(name="c", op="gemm", look="culprit", chips=[], says="", panel=[lines("of c")]),
    NodeItem(name="d", op="add", look="differs", chips=[], says="", panel=[lines("of d")]),
]
LANES = Lanes(
    nodes=(0, 1, 0, 0),
    trunks=(Trunk(lane=0, start=-1, end=3), Trunk(lane=1, start=1, end=3), Trunk(lane=0, start=3, end=4)),
    branches=(Branch(row=1, source=0, target=1, unread=False), Branch(row=2, source=1, target=0, unread=True)),
    count=2,
)
GRAPH = NodeGraph(
    title="Graph", parts=[GraphPart(title="layers[0]", nodes=ITEMS, lanes=LANES)], keys={"first": "where it starts"}
)


def test_a_node_has_a_button_and_a_panel_that_it_opens() -> None:
    body, of = drawn(GRAPH)
    assert of == {}
    assert "<h4>layers[0]</h4>" in body
    assert '<span class="key k-first">where it starts</span>' in body
    opened = re.findall(r'<button type="button" id="b([^"]*)" aria-expanded="false" aria-controls="n([^"]*)"', body)
    assert opened == [(key, key) for key in ("0-0", "0-1", "0-2", "0-3")]
    panels = re.findall(r'<div class="panel( differs)?" id="n([^"]*)" hidden="hidden"><p>(.*?)</p></div>', body)
    assert panels == [
        ("", "0-0", "of a"),
        *((" differs", key, f"of {name}") for key, name in zip(("0-1", "0-2", "0-3"), "bcd", strict=True)),
    ]
    assert '<span class="errors">2e-4</span>' in body
    assert body.count("onclick=&#34;") == 2
    assert "<b onclick" not in body
    assert 'class="chip starts"' in body


def test_parts_of_a_graph_have_keys_of_their_own() -> None:
    two = NodeGraph(title="Graph", parts=[*GRAPH.parts, *GRAPH.parts], keys={})
    body, _ = drawn(two)
    ids = re.findall(r'id="([^"]*)"', body)
    assert len(ids) == len(set(ids))
    assert {"n0-3", "n1-0", "b1-3"} <= set(ids)


def test_points_are_as_nodes_look_and_edges_run_in_lanes() -> None:
    (picture,) = re.findall(r'<svg [^>]*class="edges".*?</svg>', drawn(GRAPH)[0])
    root = ET.fromstring(picture)
    assert (root.get("width"), root.get("height")) == (str(14 * 2 + 6), str(34 * 4))
    points = [(element.tag, element.get("class")) for element in root if "point" in str(element.get("class"))]
    assert points == [
        ("circle", "point plain"),
        ("path", "point first"),
        ("rect", "point culprit"),
        ("circle", "point differs"),
    ]
    edges = [(element.get("class"), element.get("d")) for element in root if "edge" in str(element.get("class"))]
    assert edges == [
        ("edge", "M10 0V119"),
        # It ends above the node that takes it into a lane of its own.
        ("edge", "M24 51.0V102"),
        ("edge", "M10 119.0V136"),
        ("edge", "M10 34C10 49.0 24 34 24 51.0"),
        ("edge unread", "M24 68C24 83.0 10 68 10 85.0"),
    ]


def test_a_figure_that_nobody_draws_is_refused() -> None:
    @dataclass(frozen=True, slots=True)
    class Other(Figure):
        pass

    with pytest.raises(TypeError, match="Other has no picture"):
        drawn(Other("a picture"))
