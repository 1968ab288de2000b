"""Which compositions a side has: sizes of batches, prefilled and decoded, its own schedule and its engine's others."""

from __future__ import annotations

from pathlib import Path

import pytest

from moeparity.bisection.variance.compositions import groups
from moeparity.errors import SpecError, Where
from moeparity.plan.schedule.settings import ScheduleSettings
from moeparity.plan.schedule.token_grid import TokenGrid

HERE = Where(Path("recipe.yaml"), 4)
GRID = TokenGrid(spans=((0, 8),) * 4, prompts=(3,) * 4, length=8)


def names(settings: ScheduleSettings, *batches: int, grid: TokenGrid = GRID) -> dict[str, list[str]]:
    group_list = groups(settings, batches, grid, HERE)
    return {group.kind: [composition.name for composition in group.compositions] for group in group_list}


def test_of_a_trainer_they_are_its_micro_batches_and_no_other() -> None:
    assert names(ScheduleSettings(batch=3), 1, 2) == {"forward": ["micro-batch 1", "micro-batch 2"]}


def test_what_decodes_is_computed_whole_and_decoded() -> None:
    decoded = names(ScheduleSettings(start="prompt"), 2, 1)
    assert decoded == {"forward": ["micro-batch 2", "micro-batch 1"], "decode": ["batches of 2", "batches of 1"]}


def test_of_a_server_its_own_schedule_and_others_join() -> None:
    settings = ScheduleSettings(rule="vllm-v1", continuous=True, start="prompt", chunk=64, sequences=1024)
    by_kind = names(settings, 1, 2)
    assert by_kind["prefill"] == ["batches of 1", "batches of 2"]
    assert by_kind["decode"][:3] == ["batches of 1", "batches of 2", "as in the recipe"]
    assert "the opposite order of arrival" in by_kind["decode"]


def test_equal_steps_are_one_composition_and_it_is_said_which() -> None:
    (group,) = groups(ScheduleSettings(), (1, 4, 8, 9), GRID, HERE)
    assert [composition.name for composition in group.compositions] == ["micro-batch 1", "micro-batch 4"]
    assert group.left_out == (
        "micro-batch 8, all 4 has the steps of micro-batch 4",
        "micro-batch 9, all 4 has the steps of micro-batch 4",
    )


def test_batches_that_no_engine_has_are_left_out_with_the_reason() -> None:
    ragged = TokenGrid(spans=((0, 8),) * 4, prompts=(3, 3, 4, 4), length=8)
    _, decode = groups(ScheduleSettings(start="prompt"), (1, 2, 4), ragged, HERE)
    assert [composition.name for composition in decode.compositions] == ["batches of 1", "batches of 2"]
    (reason,) = decode.left_out
    assert reason.startswith("batches of 4: recipe.yaml:4: sequences 0 and 2 of one batch are prefilled to columns")


def test_packs_are_held_against_packs() -> None:
    settings = ScheduleSettings(pack=32, positions="reset")
    group_list = groups(settings, (1, 2), GRID, HERE)
    assert {group.kind: group.compositions[0].name for group in group_list} == {
        "forward": "micro-batch 1",
        "packed": "as in the recipe",
    }
    assert all(group.is_one_model for group in group_list)


@pytest.mark.parametrize(("mask", "positions"), [("none", "reset"), ("block", "running")])
def test_packs_that_hand_on_something_are_no_one_model(mask: str, positions: str) -> None:
    forward, packed = groups(ScheduleSettings(pack=32, mask=mask, positions=positions), (1, 2), GRID, HERE)
    assert (forward.is_one_model, packed.is_one_model) == (True, False)


def test_one_composition_is_nothing_to_compare() -> None:
    with pytest.raises(SpecError, match=r"^recipe.yaml:4: there is one composition only, so nothing to compare"):
        names(ScheduleSettings(), 8, 9)
