"""Updates of the weights under running sequences: which steps run on what, what is found in a prefix cache, whose keys
are stale, and what is refused.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeparity.errors import SpecError
from moeparity.plan.schedule.make import refuse_unfit
from moeparity.plan.schedule.steps import Schedule
from moeparity.plan.schedule.token_grid import TokenGrid
from moeparity.plan.schedule.updates import ages, all_on, recomputed
from tests.plan.schedule.grids import HERE, grid, grids, listing, make, schedulings, written
from tests.plan.schedule.test_invariants import check

PAIR = grid((3, 6), (2, 6))
VLLM = {"rule": "vllm-v1", "decode": {"from": "prompt"}}


def on_weights(of: Schedule) -> list[str]:
    """The steps, each with the lag of its weights in front."""
    engine_steps = [step for step in of.steps if not step.filler]
    return [f"{step.lag}: {text}" for step, text in zip(engine_steps, listing(of), strict=True)]


def test_a_server_changes_its_weights_between_steps() -> None:
    assert on_weights(make({**VLLM, "updates": {"at": "prompt+1"}}, PAIR)) == [
        "1: prefill 0:0-3 1:0-2",
        "1: decode 0:3-4 1:2-3",
        "0: decode 0:4-5 1:3-4",
        "0: decode 1:4-5",
    ]


def test_a_step_of_two_versions_is_cut_the_older_first() -> None:
    assert on_weights(make({**VLLM, "updates": {"at": [[4, 1]]}}, PAIR)) == [
        "1: chunk 0:0-3 1:0-1",
        "0: chunk 1:1-2",
        "1: decode 0:3-4",
        "0: decode 1:2-3",
        "0: decode 0:4-5 1:3-4",
        "0: decode 1:4-5",
    ]


def test_a_rectangle_is_cut_into_rectangles() -> None:
    of = make({"decode": {"from": 3}, "updates": {"at": [[4, 4, 2]]}}, grid((3, 6), (3, 6), (3, 6)))
    assert on_weights(of)[:5] == [
        "1: prefill 0:0-3 1:0-3",
        "1: chunk 2:0-2",
        "0: chunk 2:2-3",
        "1: decode 0:3-4 1:3-4",
        "0: decode 2:3-4",
    ]
    assert {step.shape for step in of.steps if not step.filler} == {"dense"}
    assert of.positions == make({"decode": {"from": 3}}, grid((3, 6), (3, 6), (3, 6))).positions


def test_a_forward_that_an_update_cuts_keeps_its_positions() -> None:
    tokens = TokenGrid(spans=((0, 6), (2, 6)), prompts=(3, 3), length=6)
    of = make({"updates": {"at": [[4, 2]]}}, tokens)
    assert on_weights(of) == ["1: chunk 0:0-4 1:0-4", "0: chunk 0:4-6 1:4-6"]
    assert of.positions == "columns"


@pytest.mark.parametrize(("at", "lag"), [(0, 0), ([[6, 4]], 1), ([[0, 0]], 0)])
def test_padding_goes_with_the_tokens(at: Any, lag: int) -> None:
    tokens = TokenGrid(spans=((0, 6), (2, 6)), prompts=(3, 3), length=6)
    of = make({"decode": {"from": 6}, "updates": {"at": at}}, tokens)
    assert {step.lag for step in of.steps if not step.filler} == {lag}
    assert listing(of) == listing(make({"decode": {"from": 6}}, tokens))


def test_rows_behind_the_end_of_a_sequence_cut_no_step() -> None:
    """`generate` goes on computing a sequence that is done; whichever weights, nobody reads these rows."""
    of = make({"decode": {"from": "prompt"}, "updates": {"at": [[5, 4]]}}, grid((3, 7), (3, 4)))
    assert on_weights(of) == [
        "1: prefill 0:0-3 1:0-3",
        "1: decode 0:3-4 1:3-4",
        "1: decode 0:4-5 1:4-5",
        "0: decode 0:5-6 1:5-6",
        "0: decode 0:6-7 1:6-7",
    ]


def test_a_cache_that_is_filled_anew_is_one_prefill_of_all_that_runs() -> None:
    of = make({**VLLM, "updates": {"at": [1, 4], "cache": "recomputed"}}, PAIR)
    assert of.recomputes
    assert on_weights(recomputed(of, 0, 2, 6)) == [
        "0: prefill 0:0-4 1:0-4",
        "0: decode 0:4-5",
        "0: decode 1:4-5",
    ]
    assert on_weights(recomputed(of, 1, 2, 6))[:2] == ["1: prefill 0:0-1 1:0-1", "1: chunk 0:1-3 1:1-2"]
    assert recomputed(of, 2, 2, 6) == all_on(of, 2), "before the first update there is nothing to compute anew"


@given(data=st.data(), tokens=grids())
def test_a_cache_that_is_filled_anew_has_every_token_and_its_keys_first(data: st.DataObject, tokens: TokenGrid) -> None:
    of = make(data.draw(schedulings(tokens.sequences)), tokens)
    for lag in of.lags:
        steps = recomputed(of, lag, tokens.sequences, tokens.length)
        check(steps, tokens)
        assert steps.lags <= {lag}


def test_sequences_that_were_done_are_computed_beside() -> None:
    of = make({**VLLM, "updates": {"at": [[3, 5]]}}, grid((2, 3), (2, 6)))
    assert on_weights(recomputed(of, 0, 2, 6)) == ["0: prefill 0:0-2", "0: prefill 1:0-5"]


SHARED = TokenGrid(spans=((0, 9), (0, 9), (0, 9)), prompts=(7, 7, 7), length=9, ids=((1, 2, 3, 4, 5, 6, 7, 8, 9),) * 3)


@pytest.mark.parametrize(("prefix", "copied", "stale"), [("kept", [1, 2], True), ("keyed", [2], False)])
def test_a_prefix_cache_survives_an_update_or_is_keyed_by_version(prefix: str, copied: list[int], stale: bool) -> None:
    """The first request runs on the older weights, the other two on the newer."""
    fields = {
        "rule": "vllm-v1",
        "prefix": {"block": 3},
        "decode": {"from": "prompt", "batch": "continuous", "arrivals": [0, 5, 9]},
        "updates": {"at": [[9, 0, 0]], "prefix": prefix},
    }
    of = make(fields, SHARED)
    assert sorted({copy.sequence for step in of.steps for copy in step.copies}) == copied
    age = ages(of, 3, 9)
    assert [row[:7] for row in age.lag] == [[1] * 7, *([[1] * 6 + [0]] * 2 if stale else [[0] * 7] * 2)]
    assert (age.oldest_key[1][6] > age.lag[1][6]) == stale


def test_a_block_that_an_update_cuts_is_found_by_nobody() -> None:
    fields = {"rule": "vllm-v1", "prefix": {"block": 3}, "decode": {"from": "prompt", "arrivals": [0, 5, 9]}}
    of = make({**fields, "updates": {"at": [[4, 0, 9]], "prefix": "keyed"}}, SHARED)
    copies = {copy[:3] for step in of.steps for copy in step.copies}
    assert copies == {(2, 0, 3)}, "the last request runs on the older weights, and finds the first block of the first"


def test_keys_are_stale_from_the_update_on_unless_they_are_computed_anew() -> None:
    of = make({**VLLM, "updates": {"at": [2, 4]}}, PAIR)
    lag, oldest_key = ages(of, 2, 6)
    assert lag[0] == [2, 2, 1, 1, 0, 0]
    assert [key > row for key, row in zip(oldest_key[0], lag[0], strict=True)] == [False, False, True, True, True, True]
    lag, oldest_key = ages(replace(of, recomputes=True), 2, 6)
    assert oldest_key == lag


@pytest.mark.parametrize(
    ("at", "says"),
    [
        (7, "places an update at token 7 of sequence 0, which has 6 tokens; expected 0 .* to 6"),
        ("prompt+4", "places an update at token 7 of sequence 0"),
        ([4, 3], "goes back in sequence 0: an update at token 3 follows one at 4"),
        ([[1, 2, 3]], "names 3 positions of an update; expected one number, or one for each of the 2 sequences"),
    ],
)
def test_updates_that_fit_no_tokens(at: Any, says: str) -> None:
    with pytest.raises(SpecError, match=rf"^here: updates\.at {says}"):
        refuse_unfit(written({**VLLM, "updates": {"at": at}}), grid((3, 6), (2, 6)), HERE)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"updates": {"at": -1}}, "is -1; expected at least 0"),
        ({"updates": {"at": "promt+1"}}, "'promt.1' is no token"),
        ({"updates": {"at": []}}, "a list of at least 1"),
        ({"updates": {"at": 3, "prefix": "keyed"}}, "there is none"),
        ({"updates": {"at": 3}, "pack": {"length": 8}}, "a `pack` is of whole sequences"),
        ({"updates": {"at": 3, "cache": "flushed"}}, "'kept' or 'recomputed'"),
    ],
)
def test_what_no_schedule_may_say_of_updates(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(SpecError, match=says):
        written(fields)
