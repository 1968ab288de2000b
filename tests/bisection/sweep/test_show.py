"""What the terminal shows of a sweep, and what its JSON holds."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from moeparity.bisection.divergence.data import Root
from moeparity.bisection.flips.data import LayerFlips, RoutingFlips
from moeparity.bisection.report import Report
from moeparity.bisection.sweep.report import Point, Sweep
from moeparity.bisection.sweep.show import document
from moeparity.bisection.verdict.data import Metrics
from moeparity.metrics.verdict import Interval
from tests.bisection.reports import REPORT, fill
from tests.printed import printed

FAIL = replace(REPORT, roots=(fill(Root, node="layers[10].attention.o_reduce", op="all_reduce"),))
OPEN = replace(FAIL, verdict=replace(FAIL.verdict, status="inconclusive"), flips=None)
EQUAL = replace(
    REPORT,
    roots=(),
    metrics=fill(Metrics),
    verdict=replace(REPORT.verdict, status="pass", value=fill(Interval, level=0.95)),
    flips=fill(RoutingFlips, tokens=240, layers=(fill(LayerFlips, tokens=240),)),
)
ERROR = (
    "recipes/quickstart.yaml:7: layers[0].attention.q:tensor: 6 heads cannot be cut into 8 pieces. Take 1, 2, 3 or 6."
)
REPORTS = (EQUAL, OPEN, FAIL, None)


def swept(reports: Sequence[Report | None] = REPORTS, **values: Sequence[Any]) -> Sweep:
    keys = tuple(values) or ("placement.tensor",)
    rows = list(zip(*(values or {"placement.tensor": (1, 2, 4, 8)}).values(), strict=True))
    points = [
        Point(values=dict(zip(keys, row, strict=True)), report=report, error=None if report else ERROR)
        for row, report in zip(rows, reports, strict=True)
    ]
    return Sweep(recipe="recipes/[/bold].yaml", keys=keys, points=tuple(points))


def lines(sweep: Sweep, width: int) -> list[str]:
    return [line.rstrip() for line in printed(document(sweep), width).splitlines()]


def table(sweep: Sweep, width: int) -> list[str]:
    """The lines between the head and the note."""
    shown = lines(sweep, width)
    start = shown.index("") + 1
    return shown[start : shown.index("", start)]


STARTS = "  starts at layers[10].attention.o_reduce (all_reduce)"


def test_one_row_per_point_and_below_it_where_it_starts() -> None:
    assert table(swept(), 100) == [
        "placement.tensor  verdict       k3                           KL        flips",
        "1                 pass          all bits equal               0         0.00% 0.00%",
        "  starts nowhere",
        "2                 inconclusive  1.30e-03 9.00e-04..1.70e-03  2.00e-03",
        STARTS,
        "4                 fail          1.30e-03 9.00e-04..1.70e-03  2.00e-03  7.50% 5.00%",
        STARTS,
        "8                 cannot run",
        "  recipes/quickstart.yaml:7: layers[0].attention.q:tensor: 6 heads cannot be cut into 8 pieces. Take",
        "  1, 2, 3 or 6.",
    ]


def test_values_of_several_keys_stand_in_the_order_of_the_keys() -> None:
    keys = {
        "layers[*].moe.combine:order": ("threads(4, vector=2) | fold_hi", "native"),
        "reference.dtype": (None, True),
    }
    shown = table(swept(reports=(FAIL, None), **keys), 100)
    assert shown[:4] == [
        "layers[*].moe.combine:order,          verdict     k3                           KL        flips",
        "reference.dtype",
        "threads(4, vector=2) | fold_hi, null  fail        1.30e-03 9.00e-04..1.70e-03  2.00e-03  7.50% 5.00%",
        STARTS,
    ]
    assert shown[4] == "native, true                          cannot run"
    assert shown[5].startswith("  recipes/quickstart.yaml:7")
    assert " ".join(" ".join(shown[5:]).split()) == ERROR


@pytest.mark.parametrize("width", [80, 90, 100, 120, 160, 200])
def test_no_number_and_no_reason_is_ever_cut(width: int) -> None:
    for sweep in (swept(), swept(a=(1, 2, 3, 4), b=("x", "y", "z", "null"))):
        shown = lines(sweep, width)
        assert max(map(len, shown)) <= width
        text = " ".join("\n".join(shown).split())
        assert not {"…", "..."} & set(text.split())
        for cell in ("all bits equal", "9.00e-04..1.70e-03", "2.00e-03", "inconclusive", "(all_reduce"):
            assert cell in text


def test_the_head_and_the_warnings_are_those_of_the_points() -> None:
    warned = replace(FAIL, warnings=("The weights are synthetic(0).",))
    shown = lines(swept(reports=(warned, warned), dtype=("bf16", "fp32")), 120)
    assert shown[0] == shown[-1] == "FAIL    2 points: 2 fail, gate k3 0.0001; exit 1"
    assert shown[1] == "recipe      recipes/[/bold].yaml"
    assert "gate        k3 below 0.0001 per token" in shown
    assert [line for line in shown if "synthetic" in line] == ["warning: The weights are synthetic(0)."]
    assert "k3: nats per token, with its 95% interval." in "\n".join(shown)


def test_the_column_is_called_by_the_metric_that_is_gated() -> None:
    gated = replace(FAIL, verdict=replace(FAIL.verdict, metric="mean_abs_delta"))
    text = "\n".join(lines(swept(reports=(gated, gated), dtype=("bf16", "fp32")), 160))
    assert re.search(r"^dtype +verdict +mean_abs_delta +KL", text, re.MULTILINE)
    assert "mean_abs_delta: nats per token, with its 95% interval." in text
    assert "k3" not in text


def test_a_sweep_of_which_nothing_ran_shows_why() -> None:
    shown = "\n".join(lines(swept(reports=(None, None), dtype=("bf16", "fp32")), 200))
    assert shown.count(ERROR) == 2
    assert "interval" not in shown


@pytest.mark.parametrize(
    ("reports", "code"),
    [
        ((EQUAL,), 0),
        ((EQUAL, OPEN), 3),
        ((EQUAL, OPEN, FAIL), 1),
        ((EQUAL, OPEN, FAIL, None), 2),
        ((OPEN, None), 2),
    ],
)
def test_exit_code_is_the_first_present_of_2_1_3_0(reports: tuple[Report | None, ...], code: int) -> None:
    assert swept(reports, n=range(len(reports))).exit_code == code


def test_json_holds_every_point_and_is_strict() -> None:
    nan = replace(FAIL, metrics=replace(FAIL.metrics, k3=math.nan))

    def refuse(word: str) -> None:
        raise AssertionError(word)

    written = json.loads(swept((EQUAL, nan, None), dtype=("bf16", None, 1.5)).to_json(), parse_constant=refuse)
    assert written["schema"] == "moeparity.sweep/2"
    assert (written["recipe"], written["keys"]) == ("recipes/[/bold].yaml", ["dtype"])
    equal, unequal, refused = written["points"]
    assert [point["values"] for point in written["points"]] == [{"dtype": "bf16"}, {"dtype": None}, {"dtype": 1.5}]
    assert [point["exit_code"] for point in written["points"]] == [0, 1, 2]
    assert (equal["verdict"]["status"], equal["roots"], equal["error"]) == ("pass", [], None)
    assert unequal["metrics"]["k3"] == "nan"
    assert unequal["roots"][0]["node"] == "layers[10].attention.o_reduce"
    assert unequal["flips"]["tokens_any_layer"] == 18
    assert (refused["error"], refused["verdict"], refused["metrics"]) == (ERROR, None, None)
    assert "toggles" not in equal
