"""What is said of a record, on numbers written here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from moeparity.bisection.record.report import (
    LayerRecord,
    LikelyCause,
    LogprobRecord,
    Record,
    RecordedLogprobs,
    RecordedToken,
    RouteRecord,
    Status,
)
from moeparity.bisection.record.words import decided_blame, decided_start, decided_step, record_reading
from moeparity.metrics.verdict import Interval, Verdict
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


def speak(logprobs: LogprobRecord | None, routes: RouteRecord | None = None, gate: Verdict | None = None) -> list[str]:
    return record_reading(of(logprobs, routes, gate=gate))


def of(logprobs: LogprobRecord | None, routes: RouteRecord | None = None, **fields: Any) -> Record:
    parts = [part.reproduced for part in (logprobs, routes) if part is not None]
    status: Status = "reproduced" if all(parts) else "not reproduced"
    return fill(Record, status=status, side="candidate", logprobs=logprobs, routes=routes, **fields)


def test_by_how_much_and_from_where() -> None:
    assert "\n".join(speak(OFF)) == (
        "the candidate does not give the recorded log-probabilities\n"
        "mean |delta| 0.51 nats, 200 of 210 scored tokens in 30 sequences; the candidate's own floor 0.01 (orders "
        "drawn with seed 1), half a unit of the record's last digit 5e-05 (4 decimals).\n"
        "Largest |delta| 2.25, position 9 of sequence 4: recorded -3.5, computed -1.25. Largest of the floor 0.2.\n"
        "Over floor and last digit by 0.5 [0.4, 0.6] (95%, bootstrap-t over sequences).\n"
        "Further than any draw of the floor, by far: 7 tokens in 3 sequences.\n"
        "The 60 tokens before position 5 are reproduced; with that position they no longer are.\n"
        "The floor of the candidate does not contain schedules of other engines and the inner orders of torch's own "
        "kernels.\n"
        "The diagnosis of logs (docs/diagnosis.md), of the record (its rollout) and the candidate (its trainer), names "
        "no cause.\n"
        "No routes were recorded: `routed_experts` in the token file would show in which layer it starts.\n"
        "What follows compares two simulations: the candidate is not shown to compute as the engine that made the "
        "record.\n"
        "`gate: {recorded: k3, below: ...}` can say how near is near enough (docs/tokens.md)."
    )


def test_a_floor_of_nothing_is_said_to_be() -> None:
    assert "own floor 0 (the same in every draw)" in speak(replace(OFF, floor=0.0, floor_trial="micro-batch 1"))[1]
    assert "own floor 0 (no draw)" in speak(replace(OFF, floor=0.0, floor_trial=None))[1]


def test_reproduced_is_no_proof() -> None:
    first, *_, last = speak(NEAR)
    assert first == "the candidate gives the recorded log-probabilities"
    assert last == "A wrong rounding may lie within the floor, too: no single choice is shown to be right by this."
    assert not any("wrong rounding" in sentence for sentence in speak(replace(NEAR, floor=0.0)))


def test_what_contradicts_is_named_and_the_rest_is_not() -> None:
    sentences = speak(NEAR, ROUTES)
    assert sentences[0] == "the candidate does not give the recorded routes"
    assert (
        "40 of 300 recorded routes (13.33%) go to other experts in the candidate, more than its floor in layers[1] and "
        "layers[5]."
    ) in sentences
    everywhere = replace(ROUTES, layers=tuple(replace(layer, reproduced=False) for layer in LAYERS))
    assert speak(OFF, everywhere)[0] == "the candidate does not give the recorded log-probabilities and routes"
    assert "more than its floor in all 3 MoE layers." in " ".join(speak(None, everywhere))


RIVAL = RecordedLogprobs(side="reference", tokens=200, mean_abs_delta=0.02, max_abs_delta=0.1, k3=1e-4)
POWER = LikelyCause(
    name="temperature", meaning=True, reason="It is to a power.", advice="`set: {}` on the candidate. Or another."
)

GROWTH = replace(POWER, name="growth with position", meaning=False)


def test_the_other_side_is_named_where_it_gives_the_record() -> None:
    sentences = " ".join(record_reading(of(OFF, rival=RIVAL)))
    assert "The reference lies 0.02 from the record." in sentences
    assert "check `sampled_from:`" in sentences
    assert "check `sampled_from:`" not in " ".join(speak(OFF))


def test_what_may_be_why_is_said_with_what_to_do_and_what_is_missing() -> None:
    words = " ".join(record_reading(of(OFF, causes=(POWER,))))
    assert "names temperature: It is to a power. `set: {}` on the candidate. Or another." in words
    assert "No routes were recorded" in words
    assert "names no cause." in " ".join(speak(OFF))
    assert "No routes were recorded" not in " ".join(speak(OFF, ROUTES))


@pytest.mark.parametrize(
    ("record", "who", "where", "step"),
    [
        (of(OFF, rival=RIVAL, causes=(POWER,)), "it is the reference's", "position 5", "`sampled_from: reference`"),
        (of(OFF, causes=(POWER,)), "it looks like temperature", "position 5", "`set: {}` on the candidate"),
        (
            of(OFF, ROUTES),
            "other experts than recorded from layers[1] on",
            "layers[1]",
            "hold the engine's weights to these",
        ),
        (of(OFF), "no routes were recorded", "position 5", "record `routed_experts` too"),
    ],
)
def test_what_the_record_decides_is_told_of_the_record(record: Record, who: str, where: str, step: str) -> None:
    """Not one word of a choice that the sides differ in, which is not what the verdict is about."""
    assert decided_blame(record).startswith("the record, not the difference of both sides")
    assert who in decided_blame(record)
    assert decided_start(record, "HERE").startswith(where)
    assert decided_start(record, "HERE").endswith("; between both sides HERE")
    assert step in decided_step(record)


OPEN = fill(Verdict, status="inconclusive", needed_sequences=25)


@pytest.mark.parametrize(
    ("gate", "demand", "step"),
    [
        (OPEN, "about 25 sequences", "nothing on either side: a record of about 25 sequences decides"),
        (replace(OPEN, needed_sequences=None), "more sequences", "nothing on either side"),
        (fill(Verdict, status="fail"), "less than the candidate differs from itself", "a wider gate on the record"),
    ],
)
def test_of_a_record_that_is_reproduced_nobody_is_blamed(gate: Verdict, demand: str, step: str) -> None:
    """Its gate asks for more sequences, or for less than the floor: no weights, and no choice, are suspected of it."""
    record = of(NEAR, gate=gate)
    assert decided_blame(record) == f"nobody: the record is reproduced, and its gate asks for {demand}"
    assert decided_start(record, "HERE").startswith(
        f"nowhere in the record, which is reproduced; its gate asks for {demand}"
    )
    assert decided_step(record).startswith(step)
