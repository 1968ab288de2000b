"""Records with numbers written here, reproduced and not, for tests of what is said of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from moeparity.bisection.record.data import (
    LayerRecord,
    LikelyCause,
    LogprobRecord,
    Record,
    RecordedLogprobs,
    RecordedToken,
    RouteRecord,
    Status,
)
from moeparity.metrics.verdict import Interval
from tests.bisection.reports import fill

EXCESS = Interval(estimate=0.5, low=0.4, high=0.6, level=0.95, method="bootstrap-t")
OFF = LogprobRecord(
    tokens=200,
    scored=210,
    sequences=30,
    last_digit="4 decimals",
    half_unit=5e-5,
    mean_abs_delta=0.51,
    floor=0.01,
    floor_largest=0.2,
    floor_trial="orders drawn with seed 1",
    excess=EXCESS,
    outside_tokens=7,
    outside_sequences=3,
    largest=RecordedToken(sequence=4, position=9, recorded=-3.5, computed=-1.25),
    from_position=5,
    before=60,
    reproduced=False,
)
NEAR = replace(OFF, reproduced=True, from_position=None, outside_tokens=0, outside_sequences=0)
LAYERS = tuple(
    LayerRecord(layer=layer, token_layers=100, other_sets=others, floor=1, reproduced=others < 2)
    for layer, others in ((1, 30), (2, 1), (5, 9))
)
ROUTES = RouteRecord(layers=LAYERS, excess=EXCESS, reproduced=False)


def of(logprobs: LogprobRecord | None, routes: RouteRecord | None = None, **fields: Any) -> Record:
    parts = [part.reproduced for part in (logprobs, routes) if part is not None]
    status: Status = "reproduced" if all(parts) else "not reproduced"
    return fill(Record, status=status, side="candidate", logprobs=logprobs, routes=routes, **fields)


RIVAL = RecordedLogprobs(side="reference", tokens=200, mean_abs_delta=0.02, max_abs_delta=0.1, k3=1e-4)
POWER = LikelyCause(
    name="temperature", meaning=True, reason="It is to a power.", advice="`set: {}` on the candidate. Or another."
)

GROWTH = replace(POWER, name="growth with position", meaning=False)
