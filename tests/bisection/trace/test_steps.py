"""Traces of other steps than one forward over the grid: cached, padded, packed, in micro-batches, one token."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from moeparity.bisection.pipeline import bisect
from moeparity.bisection.report import Report
from tests.evidence.traced import captured, recipe, reported, tokens


def _traced(report: Report) -> Any:
    assert report.trace is not None
    return report.trace


def in_micro_batches(program: Any, ids: torch.Tensor) -> None:
    with torch.no_grad():
        for rows in ids.split(2):
            program(rows, attention_mask=torch.ones_like(rows), use_cache=False)


def decoded(program: Any, ids: torch.Tensor) -> None:
    """Prompts of four tokens in one forward, then one token after the other, as `generate` calls the model."""
    cache = None
    with torch.no_grad():
        for step in (ids[:, :4], *ids[:, 4:].split(1, dim=1)):
            out = program(step, past_key_values=cache, use_cache=True, logits_to_keep=1)
            cache = out.past_key_values


def test_micro_batches_are_put_together(qwen3_moe: Path, tmp_path: Path) -> None:
    further = {"reference": {"profile": "hf-eager", "micro_batch": 2}}
    report = reported(tmp_path, qwen3_moe, run=in_micro_batches, further=further)
    assert _traced(report).forwards == "2 of [2, 9]"
    assert (report.metrics.unequal_tokens, report.roots) == (0, ())
    assert not any("schedule" in sentence for sentence in _traced(report).reading)


def test_a_decode_is_held_to_a_reference_that_decodes(qwen3_moe: Path, tmp_path: Path) -> None:
    ids = tokens()
    trace = captured(qwen3_moe, tmp_path / "trace", ids, run=decoded)
    lines = [f'{{"input_ids": {row}, "mask": {[0] * 4 + [1] * 5}}}' for row in ids.tolist()]
    further = {"reference": {"profile": "hf-eager", "schedule": {"decode": {"from": 4}}}}
    path = recipe(tmp_path, qwen3_moe, ids, trace, **further)
    (tmp_path / "tokens.jsonl").write_text("\n".join(lines))
    report = bisect(path, device="cpu")
    # What stands last is never read: it was fed all the same.
    assert _traced(report).forwards == "1 of [4, 4], 5 of [4, 1]"
    assert (report.metrics.unequal_tokens, report.roots) == (0, ())


def test_other_steps_than_the_references_are_told(qwen3_moe: Path, tmp_path: Path) -> None:
    further = {"reference": {"profile": "hf-eager", "micro_batch": 3}}
    report = reported(tmp_path, qwen3_moe, run=in_micro_batches, further=further)
    sentences = [
        it for it in _traced(report).reading if "2 of [2, 9] tokens, the reference's 1 of [3, 9], 1 of [1, 9]" in it
    ]
    assert len(sentences) == 1
    assert "Without `micro_batch` and `schedule` the reference computes the program's own forwards" in sentences[0]


LENGTHS = (1, 9, 5, 9)


def of_unequal_length(folder: Path, checkpoint: Path, run: Any, *, padding: str = "right", **settings: Any) -> Report:
    """Sequences of these lengths, of which `run` is given the list; the recipe's reference says no schedule."""
    rows = [row[:length] for row, length in zip(tokens(), LENGTHS, strict=True)]
    run_rows = partial(_of_rows, run, rows)
    trace = captured(checkpoint, folder / "trace", tokens(), run=run_rows, profile="hf-default", **settings)
    path = recipe(folder, checkpoint, tokens(), trace, reference={"profile": "hf-default"})
    (folder / "tokens.jsonl").write_text("".join(f'{{"input_ids": {row.tolist()}}}\n' for row in rows))
    path.write_text(
        path.read_text().replace("sampled_from: candidate", f"sampled_from: candidate\n  padding: {padding}")
    )
    return bisect(path, device="cpu")


def _of_rows(run: Any, rows: list[torch.Tensor], program: Any, _: torch.Tensor) -> None:
    run(program, rows)


def one_by_one(program: Any, rows: list[torch.Tensor]) -> None:
    with torch.no_grad():
        for row in rows:
            program(row[None], use_cache=False)


def padded_at_the_left(program: Any, rows: list[torch.Tensor]) -> None:
    ids = torch.stack([torch.cat([row.new_zeros(9 - len(row)), row]) for row in rows])
    mask = torch.stack([torch.arange(9) >= 9 - length for length in LENGTHS]).long()
    with torch.no_grad():
        program(ids, attention_mask=mask, use_cache=False)


def in_two_widths(program: Any, rows: list[torch.Tensor]) -> None:
    """The first two sequences padded to the longer of them, then the others alone."""
    first = torch.stack([torch.cat([row, row.new_zeros(9 - len(row))]) for row in rows[:2]])
    mask = torch.stack([torch.arange(9) < length for length in LENGTHS[:2]]).long()
    with torch.no_grad():
        program(first, attention_mask=mask, use_cache=False)
        for row in rows[2:]:
            program(row[None], use_cache=False)


@pytest.mark.parametrize(
    ("run", "padding"), [(one_by_one, "right"), (in_two_widths, "right"), (padded_at_the_left, "left")]
)
def test_a_reference_without_a_schedule_computes_the_programs_forwards(
    run: Any, padding: str, qwen3_moe: Path, tmp_path: Path
) -> None:
    report = of_unequal_length(tmp_path, qwen3_moe, run, padding=padding)
    assert (report.verdict.status, report.metrics.unequal_tokens, report.roots) == ("pass", 0, ())
    assert _traced(report).together
    assert report.reference.schedule == "in the program's own forwards"


def test_forwards_that_no_schedule_computes_are_told_where_it_starts(qwen3_moe: Path, tmp_path: Path) -> None:
    report = of_unequal_length(tmp_path, qwen3_moe, padded_at_the_left)
    assert not _traced(report).together
    assert report.roots, "rows that are padded at the other side stand at other positions"
    assert report.summary.starts.endswith("; the reference computed other tokens together, which may be all of it")
    assert any("set `tokens: {padding: left}`" in sentence for sentence in _traced(report).reading)


def test_one_innocent_program_is_not_blamed_for_another_fault(qwen3_moe: Path, tmp_path: Path) -> None:
    """NaN of one rare expert in a layer, in forwards of unequal length: that layer is named, and nothing else."""

    def patch(program: Any) -> None:
        program.model.layers[1].mlp.experts.down_proj.data[3, 7] = float("nan")

    report = of_unequal_length(tmp_path, qwen3_moe, one_by_one, patch=patch)
    assert [root.node for root in report.roots] == ["layers[1].moe.combine"]
    assert report.metrics.nonfinite_tokens > 0
    assert report.summary.starts.startswith("NaN at layers[1].moe.combine")
    assert report.summary.blame == "no shares are taken of NaN or infinities; by grafts they start in layers[1]"
    assert report.summary.to_set.startswith("look at layers[1].moe.combine in the program")


def padded_by_the_program(program: Any, ids: torch.Tensor) -> None:
    """Two pads before each sequence."""
    wide = torch.cat([torch.zeros_like(ids[:, :2]), ids], dim=1)
    mask = torch.ones_like(wide)
    mask[:, :2] = 0
    with torch.no_grad():
        program(wide, attention_mask=mask, position_ids=(mask.cumsum(-1) - 1).clamp(min=0), use_cache=False)


def test_padding_of_the_program_is_left_out(qwen3_moe: Path, tmp_path: Path) -> None:
    traced = _traced(reported(tmp_path, qwen3_moe, run=padded_by_the_program))
    assert (traced.tokens, traced.real_tokens) == (36, 36)
    assert traced.forwards == "1 of [4, 11]"


def packed(program: Any, ids: torch.Tensor) -> None:
    """All sequences in one row, each of which sees itself alone."""
    sequences, length = ids.shape
    of = torch.arange(sequences).repeat_interleave(length)
    visible = (of[:, None] == of) & torch.ones(len(of), len(of), dtype=torch.bool).tril()
    mask = torch.zeros(visible.shape, dtype=torch.bfloat16).masked_fill(~visible, torch.finfo(torch.bfloat16).min)
    positions = torch.arange(length).repeat(sequences)[None]
    with torch.no_grad():
        program(ids.reshape(1, -1), attention_mask=mask[None, None], position_ids=positions, use_cache=False)


def test_a_pack_is_taken_apart(qwen3_moe: Path, tmp_path: Path) -> None:
    report = reported(tmp_path, qwen3_moe, run=packed)
    assert _traced(report).forwards == "1 of [1, 36]"
    assert _traced(report).tokens == 36
    assert _traced(report).together
    assert (report.metrics.unequal_tokens, report.roots) == (0, ())


def twice(program: Any, ids: torch.Tensor) -> None:
    """The recipe's tokens between others, and again with other weights."""
    with torch.no_grad():
        program(ids.flip(1), use_cache=False)
        program(ids, use_cache=False)
        program.lm_head.weight.mul_(2)
        program(ids, use_cache=False)
        program.lm_head.weight.div_(2)


def test_other_forwards_are_left_out_and_told(qwen3_moe: Path, tmp_path: Path) -> None:
    report = reported(tmp_path, qwen3_moe, run=twice)
    assert report.metrics.unequal_tokens == 0
    assert _traced(report).others == 2
    assert any("2 further forwards" in sentence for sentence in _traced(report).reading)


def test_one_token(qwen3_moe: Path, tmp_path: Path) -> None:
    report = reported(tmp_path, qwen3_moe, ids=tokens((1, 2)))
    assert report.metrics.unequal_tokens == 0
    assert report.roots == ()


def prompts_alone(program: Any, ids: torch.Tensor) -> None:
    """Each sequence by itself, and the second not at all."""
    with torch.no_grad():
        for number, row in enumerate(ids):
            if number != 1:
                program(row[None], use_cache=False)


def test_tokens_that_are_not_shown_count_in_nothing(qwen3_moe: Path, tmp_path: Path) -> None:
    ids = tokens()
    trace = captured(qwen3_moe, tmp_path / "trace", ids, run=prompts_alone)
    path = recipe(tmp_path, qwen3_moe, ids, trace, reference={"profile": "hf-eager", "micro_batch": 1})
    masks = [[int(number != 1)] * 9 for number in range(4)]
    lines = [f'{{"input_ids": {row}, "mask": {mask}}}' for row, mask in zip(ids.tolist(), masks, strict=True)]
    path.with_name("tokens.jsonl").write_text("\n".join(lines))
    report = bisect(path, device="cpu")
    assert (report.metrics.unequal_tokens, report.roots) == (0, ())
    assert _traced(report).tokens == 27
    assert any("It shows 27 of 36 tokens" in sentence for sentence in _traced(report).reading)


@pytest.mark.parametrize("name", ["qwen3_moe", "deepseek_v3"])
def test_what_generate_computes_has_the_bits_of_a_reference_that_decodes(
    request: pytest.FixtureRequest, tmp_path: Path, name: str
) -> None:
    """What a step makes of all keys, as latents that are expanded anew, is no value of its own tokens."""
    checkpoint = request.getfixturevalue(name)
    prompts = tokens((3, 5))
    sequences: list[list[int]] = []

    def generated(program: Any, ids: torch.Tensor) -> None:
        sequences.extend(
            program.generate(ids, max_new_tokens=3, min_new_tokens=3, do_sample=False, pad_token_id=0).tolist()
        )

    trace = captured(checkpoint, tmp_path / "trace", prompts, run=generated)
    further = {"reference": {"profile": "hf-eager", "schedule": {"decode": {"from": 5}}}}
    path = recipe(tmp_path, checkpoint, prompts, trace, **further)
    lines = [f'{{"input_ids": {row}, "mask": {[0] * 5 + [1] * 3}}}' for row in sequences]
    path.with_name("tokens.jsonl").write_text("\n".join(lines))
    report = bisect(path, device="cpu")
    assert (report.metrics.unequal_tokens, report.roots) == (0, ())
    assert _traced(report).forwards == "1 of [3, 5], 2 of [3, 1]"
    # The last token is never read.
    assert _traced(report).tokens == 21
    assert not any("schedule" in sentence for sentence in _traced(report).reading)
