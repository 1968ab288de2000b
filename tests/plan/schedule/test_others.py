"""A side's other legal schedules."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from moeparity.errors import SpecError
from moeparity.plan.schedule.make import refuse_unfit, schedule
from moeparity.plan.schedule.others import MOST, others
from moeparity.plan.schedule.settings import settings
from tests.plan.schedule.grids import HERE, grid, grids, schedulings, written
from tests.plan.schedule.test_invariants import check
from tests.plan.schedule.test_recorded import recorded


@pytest.mark.parametrize(
    ("size", "names"),
    [
        (8, ["micro-batch 1", "micro-batch 4"]),
        (6, ["micro-batch 1", "micro-batch 3"]),
        (7, ["micro-batch 1"]),
        (1, ["micro-batch 2"]),
    ],
)
def test_micro_batches(size: int, names: list[str]) -> None:
    tokens = grid(*[(1, 3)] * 8)
    assert list(others(settings(None, size, 8, HERE), tokens, HERE)) == names


def test_a_single_sequence_has_no_other_batch() -> None:
    assert not others(settings(None, 1, 1, HERE), grid((1, 3)), HERE)


def test_a_server() -> None:
    by = written({"rule": "vllm-v1", "decode": {"from": "prompt"}}, 4)
    assert list(others(by, grid((2, 5), (3, 6), (2, 5), (1, 4)), HERE)) == [
        "one by one",
        "at most 2 at once",
        "chunks of 4 tokens",
        "the opposite order of arrival",
    ]


def test_packs() -> None:
    by = written({"pack": {"length": 12}}, 4)
    assert list(others(by, grid(*[(1, 3)] * 4), HERE)) == ["packs of 6 tokens", "packs of 3 tokens"]


def test_a_recorded_schedule_is_what_it_was(tmp_path: Path) -> None:
    assert not others(recorded(tmp_path, {"spans": [[0, 0, 4], [1, 0, 5]]}), grid((2, 4), (3, 5)), HERE)


@given(st.data())
def test_others_are_schedules_of_other_steps(data: st.DataObject) -> None:
    tokens = data.draw(grids())
    by = written(data.draw(schedulings(tokens.sequences)), tokens.sequences)
    try:
        refuse_unfit(by, tokens, HERE)
    except SpecError:
        assume(False)
    by_name = {name: schedule(settings, tokens, HERE) for name, settings in others(by, tokens, HERE).items()}
    assert len(by_name) <= MOST
    steps = [schedule(by, tokens, HERE).steps, *(of.steps for of in by_name.values())]
    assert len(set(steps)) == len(steps)
    for of in by_name.values():
        check(of, tokens)
