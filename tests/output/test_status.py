"""The line that reports open and close with."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from moeparity.metrics.verdict import Interval, Verdict
from moeparity.output.blocks import State
from moeparity.output.status import estimated, headline, judged, state_of, status, style_of, with_but
from tests.bisection.reports import fill

FIGURE = "k3 (KL estimate, nats per token) 0.00027 [0.00021, 0.00037]"
VALUE = fill(Interval, estimate=0.000271, low=0.000214, high=0.000372, level=0.95, method="bootstrap-t")
FAILED = fill(Verdict, status="fail", metric="k3", reduce="token", below=1e-4, value=VALUE, reason="it lies above")


@pytest.mark.parametrize(
    ("verdict", "line"),
    [
        (
            FAILED,
            f"{FIGURE}, above gate 0.0001 (the most allowed); exit 1",
        ),
        (
            replace(FAILED, status="pass", below=1e-3),
            f"{FIGURE}, below gate 0.001 (the most allowed); exit 0",
        ),
        (
            replace(FAILED, status="inconclusive", reason="too few"),
            f"{FIGURE}, gate 0.0001 (the most allowed); exit 3: too few",
        ),
        # What fails for another reason than its interval says which.
        (
            replace(FAILED, below=1.0, reason="against the record, it lies above"),
            f"{FIGURE}, gate 1 (the most allowed); exit 1: against the record, it lies above",
        ),
        (
            replace(FAILED, status="pass", reason="all bits are equal", value=replace(VALUE, method="exact")),
            "all bits are equal, gate 0.0001 (the most allowed); exit 0",
        ),
        (
            replace(FAILED, reason="tokens with NaN: 3", value=replace(VALUE, estimate=math.nan)),
            "k3 (KL estimate, nats per token) nan, gate 0.0001 (the most allowed); exit 1: tokens with NaN: 3",
        ),
        (
            replace(FAILED, metric="mean_ratio", below=0.0001),
            "|mean_ratio - 1| (per token) 0.00027 [0.00021, 0.00037], above gate 0.0001 (the most allowed); exit 1",
        ),
        (
            replace(FAILED, metric="k3_sequence", reduce="sequence"),
            (
                "k3_sequence (KL estimate, nats per sequence) 0.00027 [0.00021, 0.00037], above gate 0.0001 "
                "(the most allowed); exit 1"
            ),
        ),
    ],
)
def test_a_verdict(verdict: Verdict, line: str) -> None:
    assert judged(verdict) == line


def test_what_is_not_gated() -> None:
    line = status(estimated("k3", replace(VALUE, low=-math.inf, high=math.inf)), "no gate", 0)
    assert line == "k3 (KL estimate, nats per token) 0.00027, no interval, no gate; exit 0"
    assert [state_of(code) for code in (0, 1, 2, 3, 70)] == ["pass", "fail", "error", "inconclusive", "error"]
    assert state_of(0, bounded=False) == "done"


@pytest.mark.parametrize(
    ("state", "but", "opening", "style"),
    [
        ("pass", (), "PASS", "bold green"),
        ("pass", ("the noise is greater",), "PASS, but", "bold yellow"),
        ("fail", (), "FAIL", "bold red"),
        ("error", (), "ERROR", "bold red"),
        ("inconclusive", (), "INCONCLUSIVE", "bold yellow"),
        ("done", (), "DONE", "bold"),
    ],
)
def test_a_headline_looks_as_what_it_says(state: State, but: tuple[str, ...], opening: str, style: str) -> None:
    assert (headline(state, but), style_of(state, but)) == (opening, style)
    assert with_but("k3 0", but) == "; ".join((*but, "k3 0"))


@pytest.mark.parametrize(
    ("needed", "words"), [(582, "about 582 "), (24639, "about 25,000 "), (609011, "about 610,000 ")]
)
def test_many_needed_sequences_are_told_as_an_estimate(needed: int, words: str) -> None:
    wide = replace(VALUE, high=1.0)
    verdict = replace(FAILED, status="inconclusive", below=1e-3, value=wide, needed_sequences=needed)
    assert f"{words}such sequences are needed" in judged(verdict)
