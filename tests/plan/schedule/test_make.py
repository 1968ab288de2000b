"""Schedules worked by hand, one for each setting."""

from __future__ import annotations

import pytest

from moeparity.errors import SpecError
from moeparity.paths import LIMIT_FACTOR
from moeparity.plan.schedule.make import refuse_unfit, schedule
from moeparity.plan.schedule.settings import ScheduleSettings, settings
from moeparity.plan.schedule.steps import Copy, MicroBatches, Span
from moeparity.plan.schedule.token_grid import TokenGrid
from tests.plan.schedule.grids import HERE, grid, listing, make, written


def test_a_micro_batch_is_a_trainers_forward() -> None:
    tokens = grid((2, 5), (2, 3), (1, 5))
    of = schedule(settings(None, 2, 3, HERE), tokens, HERE)
    assert (of.steps, of.positions, of.name) == (MicroBatches(2).on(3, 5).steps, "columns", "micro-batch 2")
    assert [step.phase for step in of.steps] == ["forward", "forward"]
    assert not of.has_history


def test_a_batch_is_no_larger_than_all_sequences() -> None:
    assert settings(None, 8, 3, HERE) == settings(None, None, 3, HERE) == ScheduleSettings(batch=3)


def test_generate_prefills_the_padded_prompts_then_computes_a_column_at_a_time() -> None:
    tokens = TokenGrid(spans=((0, 6), (1, 5)), prompts=(3, 2), length=7)
    of = make({"decode": {"from": "prompt"}}, tokens)
    # Padding at the left is in the rectangle, and so is that of the sequence that is done first.
    assert listing(of) == [
        "prefill 0:0-3 1:0-3",
        "decode 0:3-4 1:3-4",
        "decode 0:4-5 1:4-5",
        "decode 0:5-6 1:5-6",
    ]
    assert {step.shape for step in of.steps if not step.filler} == {"dense"}
    assert [step.scored for step in of.steps[:2]] == [(0, 1), None]
    assert of.positions == "tokens"
    # Behind the longest sequence nothing is generated.
    assert [(step.spans, step.phase, step.filler) for step in of.steps[4:]] == [
        ((Span(0, 6, 7), Span(1, 6, 7)), "forward", True)
    ]


def test_batches_of_generate_come_one_after_the_other() -> None:
    tokens = grid((2, 4), (2, 3), (2, 4), at_left=False)
    assert listing(make({"decode": {"from": 2, "batch": {"fixed": 2}}}, tokens)) == [
        "prefill 0:0-2 1:0-2",
        "decode 0:2-3 1:2-3",
        "decode 0:3-4 1:3-4",
        "prefill 2:0-2",
        "decode 2:2-3",
        "decode 2:3-4",
    ]


def test_transformers_cuts_a_prefill_by_columns() -> None:
    of = make({"decode": {"from": "prompt"}, "prefill": {"chunk": 2}}, grid((5, 6), (5, 6)))
    assert listing(of) == ["chunk 0:0-2 1:0-2", "chunk 0:2-4 1:2-4", "chunk 0:4-5 1:4-5", "decode 0:5-6 1:5-6"]
    assert all(step.scored == (0, 1) for step in of.steps[:3])
    # What is no longer than a chunk is not cut, and without decoding it is a plain forward.
    plain = make({"prefill": {"chunk": 6}}, grid((5, 6)))
    assert (listing(plain), plain.positions) == (["forward 0:0-6"], "columns")


def test_drafted_tokens_are_verified_together() -> None:
    of = make({"decode": {"from": "prompt"}, "verify": 2}, grid((2, 9)))
    assert listing(of) == ["prefill 0:0-2", "verify 0:2-5", "verify 0:5-8", "decode 0:8-9"]
    assert all(step.scored is None for step in of.steps[1:])


def test_packs_hold_what_fits_in_order() -> None:
    tokens = TokenGrid(spans=((0, 3), (2, 5), (1, 4), (0, 5)), prompts=(1, 1, 1, 1), length=5)
    of = make({"pack": {"length": 8}}, tokens)
    assert listing(of) == ["forward 0:0-3 1:2-5", "forward 2:1-4 3:0-5"]
    assert all(step.shape == "packed" and step.isolated for step in of.steps if not step.filler)
    assert of.positions == "tokens"
    padding = [span for step in of.steps if step.filler for span in step.spans]
    assert sorted(padding) == [Span(0, 3, 5), Span(1, 0, 2), Span(2, 0, 1), Span(2, 4, 5)]


@pytest.mark.parametrize(
    ("fields", "isolated", "positions"),
    [
        ({"mask": "none"}, False, "tokens"),
        ({"positions": "running"}, True, "running"),
        ({"mask": "none", "positions": "running"}, False, "running"),
    ],
)
def test_a_pack_without_its_mask_and_positions_that_run_on(
    fields: dict[str, str], isolated: bool, positions: str
) -> None:
    of = make({"pack": {"length": 8, **fields}}, grid((1, 3), (1, 4)))
    assert [(step.isolated, of.positions) for step in of.steps if not step.filler] == [(isolated, positions)]


def test_single_requests_of_a_server() -> None:
    of = make({"rule": "vllm-v1", "decode": {"from": "prompt", "batch": "single"}}, grid((2, 4), (3, 5), length=6))
    # The last token is sampled, not computed.
    assert listing(of) == ["prefill 0:0-2", "decode 0:2-3", "prefill 1:0-3", "decode 1:3-4"]
    assert [step.spans for step in of.steps if step.filler] == [(Span(0, 3, 6), Span(1, 4, 6))]


def test_a_prompt_that_nothing_follows_is_computed_whole() -> None:
    fields = {"rule": "sglang", "decode": {"from": "prompt"}}
    assert listing(make(fields, grid((4, 4)))) == ["prefill 0:0-4"]
    # A first token is prefilled even where the prompt is empty.
    assert listing(make(fields, grid((0, 3)))) == ["prefill 0:0-1", "decode 0:1-2"]


def test_a_server_without_decoding_computes_every_token_and_its_logits() -> None:
    of = make({"rule": "vllm-v1", "prefill": {"chunk": 4}}, grid((1, 3), (1, 3)))
    assert listing(of) == ["chunk 0:0-3 1:0-1", "chunk 1:1-3"]
    assert [step.scored for step in of.steps] == [None, None]


def test_buckets_pad_decode_steps_alone() -> None:
    fields = {"rule": "vllm-v1", "decode": {"from": "prompt", "batch": "all"}, "buckets": [4, 2]}
    of = make(fields, grid((1, 4), (1, 4), (1, 3), (1, 3), (1, 3)))
    assert listing(of) == [
        "prefill 0:0-1 1:0-1 2:0-1 3:0-1 4:0-1",
        "decode 0:1-2 1:1-2 2:1-2 3:1-2 4:1-2",
        "decode 0:2-3 1:2-3",
    ]
    smaller = make(fields, grid((1, 3), (1, 3), (1, 3)))
    assert listing(smaller)[1] == "decode 0:1-2 1:1-2 2:1-2 +1"
    assert smaller.steps[1].rows == 4


def test_whoever_comes_late_joins() -> None:
    fields = {"rule": "vllm-v1", "decode": {"from": "prompt", "arrivals": [2, 0, 7]}}
    assert listing(make(fields, grid((2, 4), (1, 5), (1, 2)))) == [
        "prefill 1:0-1",
        "decode 1:1-2",
        "chunk 1:2-3 0:0-2",
        "decode 1:3-4 0:2-3",
        "prefill 2:0-1",
    ]


def shared(*lengths: int, prompts: tuple[int, ...] | None = None) -> TokenGrid:
    """Sequences that begin alike, each with a last token of its own."""
    width = max(lengths)
    ids = tuple((*range(length - 1), 100 + row, *[0] * (width - length)) for row, length in enumerate(lengths))
    return TokenGrid(
        spans=tuple((0, length) for length in lengths), prompts=prompts or tuple(lengths), length=width, ids=ids
    )


def test_vllm_finds_whole_blocks_of_the_very_step() -> None:
    fields = {"rule": "vllm-v1", "prefix": {"block": 4}, "decode": {"from": "prompt"}}
    of = make(fields, shared(10, 9, 5))
    assert listing(of) == ["chunk 1:0-8<0 2:0-4<0 0:0-10 1:8-9 2:4-5"]
    assert of.steps[0].copies == (Copy(1, 0, 8, 0, 0), Copy(2, 0, 4, 0, 0))


def test_sglang_finds_what_an_earlier_step_made() -> None:
    fields = {"rule": "sglang", "prefix": {"block": 4}, "decode": {"from": "prompt"}, "prefill": {"chunk": 12}}
    assert listing(make(fields, shared(9, 9, 9))) == ["prefill 0:0-9", "chunk 1:0-8<0 2:0-8<0 1:8-9 2:8-9"]


def test_a_prefix_is_found_at_another_place_of_the_grid() -> None:
    tokens = TokenGrid(
        spans=((0, 5), (2, 7)), prompts=(5, 5), length=7, ids=((1, 2, 3, 4, 5, 0, 0), (0, 0, 1, 2, 3, 4, 6))
    )
    of = make({"rule": "sglang", "prefix": {"block": 1}, "decode": {"from": "prompt", "batch": "single"}}, tokens)
    assert of.steps[1].copies == (Copy(1, 2, 6, 0, -2),)


def test_blocks_of_two_sources() -> None:
    tokens = TokenGrid(
        spans=((0, 3), (0, 5), (0, 6)),
        prompts=(3, 5, 6),
        length=6,
        ids=((1, 2, 9, 0, 0, 0), (1, 2, 3, 4, 8, 0), (1, 2, 3, 4, 5, 6)),
    )
    fields = {"rule": "vllm-v1", "prefix": {"block": 2}, "decode": {"from": "prompt", "batch": "single"}}
    assert make(fields, tokens).steps[2].copies == (Copy(2, 0, 2, 0, 0), Copy(2, 2, 4, 1, 0))


def test_prompts_of_one_batch_that_end_at_several_columns_are_refused() -> None:
    tokens = grid((2, 5), (3, 5))
    with pytest.raises(SpecError, match="0 and 1 of one batch are prefilled to columns 2 and 3; expected one column"):
        refuse_unfit(written({"decode": {"from": "prompt"}}), tokens, HERE)
    refuse_unfit(written({"decode": {"from": "prompt", "batch": "single"}}), tokens, HERE)
    refuse_unfit(written({"decode": {"from": 2}}), tokens, HERE)


def test_a_sequence_that_fits_into_no_pack_is_refused() -> None:
    with pytest.raises(SpecError, match=r"pack.length is 4; sequence 1 has 5 tokens\. Expected a length"):
        refuse_unfit(written({"pack": {"length": 4}}), grid((1, 3), (1, 5)), HERE)


def test_arrivals_of_another_number_are_refused() -> None:
    fields = {"rule": "sglang", "decode": {"from": "prompt", "arrivals": [0, 1]}}
    with pytest.raises(SpecError, match="arrivals names 2 steps; expected one for each of the 3 sequences"):
        refuse_unfit(written(fields), grid((1, 3), (1, 5), (1, 2)), HERE)


def test_too_many_steps_are_refused_before_they_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = grid((1, 1_000_001))
    with pytest.raises(SpecError, match="here: the schedule has more than 100,000 steps; expected at most as many"):
        make({"decode": {"from": "prompt"}}, tokens)
    monkeypatch.setenv(LIMIT_FACTOR, "0.00005")
    with pytest.raises(SpecError, match="more than 5 steps"):
        make({"decode": {"from": "prompt"}}, grid((1, 7)))
    assert len(make({"decode": {"from": "prompt"}}, grid((1, 5))).steps) == 5
