"""Declarations that say everything, alarms, and the page that is made of them."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from moeparity.errors import SpecError
from moeparity.metrics.accumulate import OF_TOTALS
from moeparity.metrics.declaration import Metric
from moeparity.metrics.declared_file import declared
from moeparity.metrics.quantities import SEQUENCE, SHARES, TOKEN
from moeparity.metrics.registry import METRICS, PRIMARY, SETS


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
def test_declares_what_it_is_made_of(metric: Metric) -> None:
    kind, of = metric.reduce.kind, metric.reduce.of
    columns = OF_TOTALS if kind == "of totals" else SEQUENCE if kind.startswith(("mean over", "sequence m")) else TOKEN
    assert of in (TOKEN if kind == "sequence mean" else columns)
    assert metric.formula
    assert metric.source.level in {"read", "secondary", "inferred"}
    assert bool(metric.source.commit) or metric.source.level != "read"
    # An alarm that is checked is told, and the other way round where it is a bound on an estimate.
    assert bool(metric.alarm) >= (metric.alarm_above is not None or metric.alarm_below is not None)
    assert (metric.reduce.at is not None) == (kind == "token quantile")


def test_no_quantity_is_unused() -> None:
    quantities = {metric.reduce.of for metric in METRICS.values()}
    quantities |= {name for of in quantities & SEQUENCE.keys() for name in SEQUENCE[of][0]}
    quantities |= {name for of in quantities & OF_TOTALS.keys() for name in OF_TOTALS[of]}
    assert quantities == TOKEN.keys() | SEQUENCE.keys() | OF_TOTALS.keys()
    assert quantities >= SHARES
    assert set(PRIMARY) <= METRICS.keys()


def test_alarms() -> None:
    ess, k1 = METRICS["ess_fraction"], METRICS["verl/kl"]
    assert [ess.alarms(value) for value in (0.29, 0.3, 1.0, math.nan)] == [True, False, False, True]
    assert [k1.alarms(value) for value in (-0.2, 0.0, 0.2)] == [True, False, True]
    assert not METRICS["k1"].alarms(math.nan)


def test_names_carry_their_set() -> None:
    assert SETS[0] == "common"
    assert all((metric.set == "common") == ("/" not in name) for name, metric in METRICS.items())


@pytest.mark.parametrize(
    ("metric", "says"),
    [
        ("{reduce: {kind: token mean, of: k1}, formula: f, source: b}", "source 'b' is none of the file's `sources`"),
        ("{reduce: {kind: token sum, of: k1}, formula: f}", "metrics.m.reduce.kind is 'token sum'; expected"),
        ("{reduce: {kind: token mean, of: k1}}", "metrics.m: key 'formula' is missing. Add it."),
        ("{reduce: {kind: token mean, of: k1}, formula: f, alarms: x}", "unknown key 'metrics.m.alarms'; expected one"),
    ],
)
def test_a_mistake_in_a_file_is_told_with_its_line(tmp_path: Path, metric: str, says: str) -> None:
    path = tmp_path / "m.yaml"
    path.write_text(f"kind: metrics\nset: mine\nsources: {{a: {{project: a/a}}}}\nmetrics:\n  m: {metric}\n", "utf-8")
    with pytest.raises(SpecError, match=re.escape(says)) as refused:
        list(declared(path))
    assert "m.yaml:5" in str(refused.value)
