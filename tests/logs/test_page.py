"""What a log's page draws: each sequence's own mean, places in the sequence, steps, runs."""

from __future__ import annotations

import json
import math
import re
from typing import Any
from unittest.mock import patch

import pytest

from moeparity.logs import measure as measuring
from moeparity.logs.measure import measure
from moeparity.logs.repeats import RepeatedRuns
from moeparity.logs.report import LogReport
from moeparity.logs.request import MetricsRequest, read_gate
from moeparity.logs.series.repeated_batch import Repeats
from moeparity.logs.show import document, document_of_runs
from moeparity.output.blocks import Document
from moeparity.output.html.page import html
from tests.metrics.made import records


def drawn(report: LogReport) -> dict[str, Any]:
    return drawn_on(document(report, "log.jsonl"))


def drawn_on(page: Document) -> dict[str, Any]:
    """What a page gives its scripts to draw, by the names of the pictures."""
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', html(page), re.DOTALL)
    pictures: dict[str, Any] = json.loads(data)
    return pictures


def test_each_sequence_has_its_own_mean() -> None:
    sequences = records(7, 20, 0.05)
    report = measure(sequences, MetricsRequest(plots=True))
    assert report.plots is not None
    for sequence, sequence_mean in zip(sequences, report.plots.sequences, strict=True):
        assert sequence.rollout is not None
        assert sequence.trainer is not None
        delta = (sequence.trainer - sequence.rollout).double()
        assert sequence_mean.id == sequence.id
        assert sequence_mean.value == pytest.approx(float((delta.exp() - 1 - delta).mean()), rel=1e-9)
    assert drawn(report)["series-sequences"]["lines"][0]["values"] == [
        sequence_mean.value for sequence_mean in report.plots.sequences
    ]


def test_of_many_those_with_the_greatest_are_drawn_in_their_order() -> None:
    sequences = records(9, 20, 0.05)
    every = measure(sequences, MetricsRequest(plots=True)).plots
    with patch.object(measuring, "MOST_DRAWN", 4):
        few = measure(sequences, MetricsRequest(plots=True)).plots
    assert every is not None
    assert few is not None
    least = sorted(sequence_mean.value for sequence_mean in every.sequences)[-4]
    assert few.sequences == tuple(sequence_mean for sequence_mean in every.sequences if sequence_mean.value >= least)


def test_the_gates_metric_is_drawn_with_its_gate() -> None:
    report = measure(records(5, 20, 0.05), MetricsRequest(plots=True, gate=read_gate("mean_abs_delta<0.1")))
    part = drawn(report)["series-sequences"]
    assert (part["labels"][1].split(",")[0], part["bound"]) == ("mean_abs_delta", 0.1)


def test_no_sequence_is_kept_where_no_page_was_asked_for() -> None:
    report = measure(records(3, 20, 0.05), MetricsRequest())
    assert report.plots is None
    assert sorted(drawn(report)) == ["series-steps-k3", "series-steps-mean_abs_delta"]


def test_runs_of_one_batch_are_drawn_with_their_median() -> None:
    repeats = Repeats(
        metric="k3", names=("a", "b", "c"), values=(1e-3, math.inf, 2e-3), least=1e-3, median=2e-3, greatest=math.inf,
        spiking=(1,), alarms=None, unsteady=(),
    )  # fmt: skip
    (part,) = drawn_on(document_of_runs(RepeatedRuns(metrics=(repeats,)), "runs")).values()
    assert part["lines"][0]["values"] == [1e-3, None, 2e-3]
    assert part["bound"] == 2e-3
    assert part["words"][1] == ["b", "k3 inf, a spike"]
