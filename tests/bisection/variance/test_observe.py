"""Which tokens count: those that an engine computes under both schedules, and of its head those that reach it."""

from __future__ import annotations

import torch

from moeparity.bisection.variance.measure import Computed
from moeparity.plan.schedule.steps import Copy, Schedule, Span, Step

SCHEDULE = Schedule(
    steps=(
        Step(spans=(Span(0, 1, 4), Span(1, 2, 3)), shape="flat", phase="prefill", scored=(0,)),
        Step(spans=(Span(0, 4, 5),), phase="decode", copies=(Copy(1, 0, 2, 0, 1),), shape="flat"),
        Step(spans=(Span(0, 0, 1), Span(1, 3, 5)), shape="flat", filler=True),
    )
)


def test_fillers_padding_and_rows_that_nobody_reads_do_not_count() -> None:
    real = torch.ones(2, 5, dtype=torch.bool)
    real[0, 1] = False
    computed = Computed.of(SCHEDULE, real)
    assert computed.layers.int().tolist() == [[0, 0, 1, 1, 1], [1, 1, 1, 0, 0]]
    assert computed.head.int().tolist() == [[0, 0, 0, 1, 1], [0, 0, 0, 0, 0]]


def test_of_two_schedules_what_both_compute_counts() -> None:
    real = torch.ones(2, 5, dtype=torch.bool)
    whole = Schedule(steps=(Step(spans=(Span(0, 0, 4), Span(1, 0, 4))),))
    common = Computed.of(SCHEDULE, real) & Computed.of(whole, real)
    assert common.layers.int().tolist() == [[0, 1, 1, 1, 0], [1, 1, 1, 0, 0]]
    assert common.head.int().tolist() == [[0, 0, 0, 1, 0], [0, 0, 0, 0, 0]]
