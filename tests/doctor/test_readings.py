"""The steps in which a side may have computed the tokens."""

from __future__ import annotations

from moeparity.doctor.readings import Packs, Prompts, Split
from moeparity.plan.schedule.steps import Schedule, Span
from moeparity.plan.schedule.token_grid import TokenGrid

PROMPTS = Prompts(TokenGrid(spans=((0, 5), (1, 5), (0, 5)), prompts=(2, 3, 1), length=5))


def computed(schedule: Schedule) -> list[tuple[int, int]]:
    spans = [span for step in schedule.steps for span in step.spans]
    return sorted((span.sequence, column) for span in spans for column in range(span.first, span.last))


def test_packs_have_no_mask_and_hold_so_many_sequences() -> None:
    schedule = Packs(sequences=2, running=True).schedule(PROMPTS)
    packs = [step for step in schedule.steps if not step.filler]
    assert [[span.sequence for span in step.spans] for step in packs] == [[0, 1], [2]]
    assert schedule.mixes_sequences
    assert schedule.positions == "running"
    assert Packs(sequences=2, running=False).schedule(PROMPTS).positions == "tokens"


def test_the_response_comes_in_a_second_step() -> None:
    schedule = Split().schedule(PROMPTS)
    assert [step.phase for step in schedule.steps if not step.filler] == ["prefill", "chunk"]
    assert schedule.steps[0].spans == (Span(0, 0, 2), Span(1, 1, 4), Span(2, 0, 1))
    assert computed(schedule) == [(row, column) for row in range(3) for column in range(5)]
