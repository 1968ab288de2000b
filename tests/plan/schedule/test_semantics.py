"""Which parts of a schedule decide what is computed, and which only in what shapes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from moeparity.errors import Where
from moeparity.plan.schedule.recorded import Recorded
from moeparity.plan.schedule.settings import WHOLE, ScheduleSettings, is_semantic, parts
from moeparity.plan.schedule.steps import Schedule, Span, Step

PADDED = ScheduleSettings(batch=4)
PACKED = ScheduleSettings(pack=64)
UNMASKED = replace(PACKED, mask="none")
RUNNING = replace(PACKED, positions="running")
SERVER = ScheduleSettings(rule="vllm-v1", continuous=True, start="prompt", chunk=8)


@pytest.mark.parametrize(
    ("reference", "candidate", "semantic"),
    [
        (PADDED, PACKED, set()),
        (PADDED, SERVER, set()),
        (PACKED, RUNNING, set()),
        (PACKED, UNMASKED, {"schedule:mask"}),
        (PACKED, replace(UNMASKED, positions="running"), {"schedule:mask", "schedule:positions"}),
        (UNMASKED, replace(UNMASKED, positions="running"), {"schedule:positions"}),
        (PADDED, UNMASKED, {"schedule:batch", "schedule:pack", "schedule:mask"}),
        (SERVER, UNMASKED, {"schedule:batch", "schedule:pack", "schedule:mask"}),
    ],
)
def test_parts_decide_what_is_computed_where_a_side_mixes_sequences(
    reference: ScheduleSettings, candidate: ScheduleSettings, semantic: set[str]
) -> None:
    for first, second in ((reference, candidate), (candidate, reference)):
        assert {part for part in parts(first, second) if is_semantic(first, second, part)} == semantic


def recorded(*, isolated: bool, shape: str = "packed") -> ScheduleSettings:
    step = Step(spans=(Span(0, 0, 3), Span(1, 0, 2)), shape=shape, isolated=isolated)  # type: ignore[arg-type]
    return ScheduleSettings(recorded=Recorded(schedule=Schedule(steps=(step,)), where=Where(Path("batches.jsonl"))))


def test_a_recorded_pack_without_borders_is_another_model() -> None:
    assert is_semantic(PADDED, recorded(isolated=False), WHOLE)
    assert not is_semantic(PADDED, recorded(isolated=True), WHOLE)
    assert not is_semantic(PADDED, recorded(isolated=False, shape="flat"), WHOLE)
