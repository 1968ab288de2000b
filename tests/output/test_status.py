"""The line that reports open and close with."""

from __future__ import annotations

import io
import math
from dataclasses import replace

import pytest
from rich.console import Console

from moeparity.metrics.verdict import Interval, Verdict
from moeparity.output.status import estimated, judged, state_of, status, status_line
from tests.bisection.reports import fill

VALUE = fill(Interval, estimate=0.000271, low=0.000214, high=0.000372, level=0.95, method="bootstrap-t")
FAILED = fill(Verdict, status="fail", metric="k3", reduce="token", below=1e-4, value=VALUE, reason="it lies above")


@pytest.mark.parametrize(
    ("verdict", "line"),
    [
        (FAILED, "k3 0.00027 [0.00021, 0.00037] nats per token, above gate 0.0001; exit 1"),
        (
            replace(FAILED, status="pass", below=1e-3),
            "k3 0.00027 [0.00021, 0.00037] nats per token, below gate 0.001; exit 0",
        ),
        (
            replace(FAILED, status="inconclusive", reason="too few"),
            "k3 0.00027 [0.00021, 0.00037] nats per token, gate 0.0001; exit 3: too few",
        ),
        # What fails for another reason than its interval says which.
        (
            replace(FAILED, below=1.0, reason="against the record, it lies above"),
            "k3 0.00027 [0.00021, 0.00037] nats per token, gate 1; exit 1: against the record, it lies above",
        ),
        (
            replace(FAILED, status="pass", reason="all bits are equal", value=replace(VALUE, method="exact")),
            "all bits are equal, gate 0.0001; exit 0",
        ),
        (
            replace(FAILED, reason="tokens with NaN: 3", value=replace(VALUE, estimate=math.nan)),
            "k3 nan, gate 0.0001; exit 1: tokens with NaN: 3",
        ),
        (
            replace(FAILED, metric="mean_ratio", below=0.0001),
            "|mean_ratio - 1| 0.00027 [0.00021, 0.00037] per token, above gate 0.0001; exit 1",
        ),
        (
            replace(FAILED, metric="k3_sequence", reduce="sequence"),
            "k3_sequence 0.00027 [0.00021, 0.00037] nats per sequence, above gate 0.0001; exit 1",
        ),
    ],
)
def test_a_verdict(verdict: Verdict, line: str) -> None:
    assert judged(verdict) == line


def test_what_is_not_gated() -> None:
    line = status(estimated("k3", replace(VALUE, low=-math.inf, high=math.inf), "nats per token"), "no gate", 0)
    assert line == "k3 0.00027 nats per token (no interval), no gate; exit 0"
    assert [state_of(code) for code in (0, 1, 2, 3, 70)] == ["pass", "fail", "error", "inconclusive", "error"]
    assert state_of(0, bounded=False) == "done"


def test_the_word_stands_in_the_first_column_and_the_rest_beside_it() -> None:
    stream = io.StringIO()
    Console(file=stream, width=40).print(status_line("inconclusive", "word " * 12))
    first, *others = stream.getvalue().splitlines()
    assert first.startswith("INCONCLUSIVE  word")
    assert others
    assert all(line.startswith(" " * 14 + "word") for line in others)
