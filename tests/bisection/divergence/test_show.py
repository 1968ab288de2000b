"""Steps of the growth over layers: what counts as one, and how a report shows a jump among many layers."""

from __future__ import annotations

import math
import re

import pytest

from moeparity.bisection.divergence.growth import GrowthStep, largest, steps
from moeparity.bisection.divergence.show import growth_table
from moeparity.bisection.flips.show import flips_table
from moeparity.bisection.report import Report
from moeparity.output.blocks import MOST_ROWS, Table
from tests.bisection.reports import grown
from tests.printed import printed


def lines(table: Table) -> list[str]:
    """The lines with runs of spaces made one."""
    return [re.sub(r"\s+", " ", line).strip() for line in printed([table], 200).splitlines()]


def steps_of(report: Report) -> tuple[GrowthStep, ...]:
    return steps(report.growth, report.flips)


def test_steps_are_between_layers_and_know_the_flips_of_the_second() -> None:
    assert steps_of(grown([0.25, 0.5, 4.0, 1.0], {2: 3})) == (
        GrowthStep(layer="layers[1]", factor=2.0, flips=0),
        GrowthStep(layer="layers[2]", factor=8.0, flips=3),
    )
    assert [step.flips for step in steps_of(grown([0.25, 0.5, 1.0]))] == [None]


def test_no_step_leads_into_the_layer_where_the_difference_starts() -> None:
    assert [step.layer for step in steps_of(grown([0.0, 0.25, 0.5, 1.0]))] == ["layers[2]"]


def test_what_was_not_measured_is_no_largest_step() -> None:
    assert largest(steps_of(grown([0.25, 0.5, 4.0, 1.0]))) == 8.0
    assert math.isnan(largest(()))
    assert math.isnan(largest(steps_of(grown([0.25, math.nan, 4.0, 1.0]))))


def test_a_bar_is_as_long_as_the_error_on_a_log_scale() -> None:
    header, *rows = lines(growth_table(grown([1e-6, 3.2e-6, 3.2e-5, 1e-4])))
    assert header == "after rel. L2 1e-6 to 1e-4 per layer equal bits mean ulp max ulp flips largest local error"
    assert [len(re.findall("#", row)) for row in rows] == [1, 3, 9, 12]
    assert ["x" + row.split(" x")[1].split()[0] for row in rows[1:3]] == ["x3.20", "x10.00"]


@pytest.mark.parametrize("error", [0.0, math.nan, math.inf])
def test_what_has_no_logarithm_has_no_bar(error: float) -> None:
    _, row, last_row = lines(growth_table(grown([error, 1e-3])))
    assert "#" not in row
    assert "#" in last_row


@pytest.mark.parametrize("at", range(1, 60))
def test_a_jump_and_its_flips_are_shown_however_long_the_tables(at: int) -> None:
    report = grown([1e-6] * at + [1e-4] * (61 - at) + [1e-4], {at: 1})
    rows = lines(growth_table(report))
    shown = [row.split()[0] for row in rows]
    assert {f"layers[{at - 1}]", f"layers[{at}]", "layers[0]", "lm_head"} <= set(shown)
    assert sum("x100.00" in row for row in rows) == 1
    assert len(rows) <= MOST_ROWS + 2
    assert report.flips is not None
    assert f"{at} 1 (0.25%) 0 (0.00%) 0" in lines(flips_table(report.flips))
    # The last row is no layer.
    assert rows[-1] == f"{len(rows) - 2} of {len(report.growth)} rows; all of them are in --json."
