"""What the terminal shows of a sweep, and what its JSON holds."""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from moeparity.bisection.divergence.report import Root
from moeparity.bisection.flips.report import LayerFlips, RoutingFlips
from moeparity.bisection.report import Report
from moeparity.bisection.sweep.report import Point, Sweep
from moeparity.bisection.sweep.text import print_sweep
from moeparity.bisection.verdict.report import Metrics
from moeparity.metrics.verdict import Interval
from tests.bisection.reports import REPORT, fill

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
    out = io.StringIO()
    print_sweep(sweep, Console(file=out, width=width, highlight=False, markup=False))
    return [line.rstrip() for line in out.getvalue().splitlines()]


def table(sweep: Sweep, width: int) -> list[str]:
    """The lines between the head and the note."""
    printed = lines(sweep, width)
    start = printed.index("") + 1
    return printed[start : printed.index("", start)]


def test_one_line_per_point_where_all_fits() -> None:
    root = "layers[10].attention.o_reduce (all_reduce)"
    assert table(swept(reports=REPORTS[:3], tensor=(1, 2, 4)), 160) == [
        "tensor  verdict       k3                           KL        flips        first divergence",
        "1       pass          all bits equal               0         0.00% 0.00%  none",
        f"2       inconclusive  1.30e-03 9.00e-04..1.70e-03  2.00e-03               {root}",
        f"4       fail          1.30e-03 9.00e-04..1.70e-03  2.00e-03  7.50% 5.00%  {root}",
    ]


def test_two_lines_per_point_on_a_terminal_of_100_columns() -> None:
    assert table(swept(), 100) == [
        "placement.tensor  verdict       k3                  KL        flips  first divergence",
        "1                 pass          all bits equal      0         0.00%  none",
        "                                                              0.00%",
        "2                 inconclusive  1.30e-03            2.00e-03         layers[10].attention.o_reduce",
        "                                9.00e-04..1.70e-03                   (all_reduce)",
        "4                 fail          1.30e-03            2.00e-03  7.50%  layers[10].attention.o_reduce",
        "                                9.00e-04..1.70e-03            5.00%  (all_reduce)",
        "8                 cannot run    recipes/quickstart.yaml:7: layers[0].attention.q:tensor: 6 heads",
        "                                cannot be cut into 8 pieces. Take 1, 2, 3 or 6.",
    ]


def test_values_on_their_own_line_where_several_keys_leave_no_room() -> None:
    keys = {
        "layers[*].moe.combine:order": ("threads(4, vector=2) | fold_hi", "native"),
        "reference.dtype": (None, True),
    }
    printed = table(swept(reports=(FAIL, None), **keys), 100)
    assert printed[:4] == [
        "  verdict     k3                  KL        flips  first divergence",
        "layers[*].moe.combine:order=threads(4, vector=2) | fold_hi, reference.dtype=null",
        "  fail        1.30e-03            2.00e-03  7.50%  layers[10].attention.o_reduce",
        "              9.00e-04..1.70e-03            5.00%  (all_reduce)",
    ]
    assert printed[4] == "layers[*].moe.combine:order=native, reference.dtype=true"
    assert printed[5].startswith("  cannot run  recipes/quickstart.yaml:7")
    assert " ".join(" ".join(printed[5:]).split()).endswith(ERROR)


@pytest.mark.parametrize("width", [80, 90, 100, 120, 160, 200])
def test_no_number_and_no_reason_is_ever_cut(width: int) -> None:
    for sweep in (swept(), swept(a=(1, 2, 3, 4), b=("x", "y", "z", "null"))):
        printed = lines(sweep, width)
        assert max(map(len, printed)) <= width
        text = " ".join("\n".join(printed).split())
        assert not {"…", "..."} & set(text.split())
        for cell in ("all bits equal", "9.00e-04..1.70e-03", "2.00e-03", "inconclusive", "(all_reduce"):
            assert cell in text


def test_the_head_and_the_warnings_are_those_of_the_points() -> None:
    warned = replace(FAIL, warnings=("The weights are synthetic(0).",))
    printed = lines(swept(reports=(warned, warned), dtype=("bf16", "fp32")), 120)
    assert printed[0] == printed[-1] == "FAIL    2 points: 2 fail, gate k3 0.0001; exit 1"
    assert printed[1] == "recipe      recipes/[/bold].yaml"
    assert "gate        k3 below 0.0001 per token" in printed
    assert [line for line in printed if "synthetic" in line] == ["warning: The weights are synthetic(0)."]
    assert "k3: nats per token, with its 95% interval." in "\n".join(printed)


def test_the_column_is_called_by_the_metric_that_is_gated() -> None:
    gated = replace(FAIL, verdict=replace(FAIL.verdict, metric="mean_abs_delta"))
    text = "\n".join(lines(swept(reports=(gated, gated), dtype=("bf16", "fp32")), 160))
    assert re.search(r"^dtype +verdict +mean_abs_delta +KL", text, re.MULTILINE)
    assert "mean_abs_delta: nats per token, with its 95% interval." in text
    assert "k3" not in text


def test_a_sweep_of_which_nothing_ran_shows_why() -> None:
    printed = "\n".join(lines(swept(reports=(None, None), dtype=("bf16", "fp32")), 200))
    assert printed.count(ERROR) == 2
    assert "interval" not in printed


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
