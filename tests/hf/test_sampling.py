"""Tokens that a side samples under its own schedule: those of transformers' generate, and of a replay, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from moeparity.bisection import sample
from moeparity.bisection.pipeline import bisect
from moeparity.bisection.prepare import prepare
from moeparity.bisection.sample import generate
from moeparity.bisection.study import Study
from moeparity.engine.forward import forward
from moeparity.errors import SpecError
from moeparity.numerics.bits import same_bits
from moeparity.plan.schedule.steps import Schedule
from tests.hf.compare import DTYPES, opened
from tests.hf.reference import load
from tests.hf.test_schedules import without_end
from tests.small_models import Shallow

NEW = 6
PROMPTS = ([3, 1, 4, 1, 5], [3, 1, 6], [5, 3, 5, 8])
CACHED = '"layers[*].attention.attend:kv_layout": cached'
Write = Callable[..., Path]


@pytest.fixture
def qwen3_moe(shallow: Shallow) -> Path:
    """Of one layer: what matters here are steps, each of which is walked anew."""
    return shallow("qwen3_moe")


@pytest.fixture
def recipe(qwen3_moe: Path, tmp_path: Path) -> Write:
    def write(candidate: str, padding: str = "left", temperature: float = 0) -> Path:
        (tmp_path / "prompts.jsonl").write_text("".join(f'{{"input_ids": {row}}}\n' for row in PROMPTS), "utf-8")
        path = tmp_path / "recipe.yaml"
        path.write_text(
            f"kind: recipe\ncheckpoint: {qwen3_moe}\nfloor: false\ngate: {{metric: k3, below: 1e-3}}\n"
            f"tokens: {{file: prompts.jsonl, padding: {padding}, "
            f"sample: {{from: candidate, new_tokens: {NEW}, temperature: {temperature}}}}}\n"
            "reference: {profile: hf-default, dtype: fp32, micro_batch: 2}\n"
            f"candidate: {{profile: hf-default, set: {{{CACHED}}}, {candidate}}}\n",
            "utf-8",
        )
        return path

    return write


@pytest.fixture
def drawn_from(monkeypatch: pytest.MonkeyPatch) -> dict[int, list[Tensor]]:
    """By sequence, the logits that tokens were drawn from."""
    logits: dict[int, list[Tensor]] = {}
    native = sample._forward

    def recording(*arguments: Any) -> sample.Forward:
        inner = native(*arguments)

        def forward(ids: Tensor, mask: Tensor, lasts: Tensor) -> tuple[Tensor, Tensor]:
            rows, values = inner(ids, mask, lasts)
            for row, value in zip(rows.tolist(), values, strict=True):
                logits.setdefault(row, []).append(value)
            return rows, values

        return forward

    monkeypatch.setattr(sample, "_forward", recording)
    return logits


def replayed(study: Study, dtype: str) -> Tensor:
    """The logits of the same tokens, all known, under the candidate's schedule, where new tokens are predicted."""
    schedule = study.walked(study.candidate)
    assert isinstance(schedule, Schedule)
    ours = forward(
        study.model,
        study.tokens.input_ids,
        attention_mask=study.tokens.attention_mask,
        profile="hf-default",
        dtype=dtype,
        schedule=schedule,
        settings={"layers[*].attention.attend:kv_layout": "cached"},
    )["logits"]
    return ours[:, :-1][study.tokens.loss_mask[:, 1:]].view(len(PROMPTS), NEW, -1)


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_a_side_samples_what_generate_does(
    recipe: Write, qwen3_moe: Path, drawn_from: dict[int, list[Tensor]], dtype: str
) -> None:
    study = generate(
        prepare(recipe(f"dtype: {dtype}, schedule: {{decode: {{from: prompt, batch: all}}}}"), device="cpu")
    )
    width = max(map(len, PROMPTS))
    mask = study.tokens.attention_mask[:, :width].long()
    live = load(opened(qwen3_moe).folder, "hf-default", DTYPES[dtype])
    with torch.no_grad(), without_end(live):
        output: Any = live.generate(  # type: ignore[operator]
            study.tokens.input_ids[:, :width],
            attention_mask=mask,
            max_new_tokens=NEW,
            do_sample=False,
            return_dict_in_generate=True,
            output_logits=True,
            pad_token_id=0,
        )
    assert torch.equal(output.sequences, study.tokens.input_ids)
    ours = torch.stack([torch.stack(drawn_from[row]) for row in range(len(PROMPTS))])
    assert same_bits(torch.stack(output.logits, 1).float(), ours.float())
    assert same_bits(replayed(study, dtype), ours)


@pytest.mark.parametrize(
    "schedule",
    [
        "{decode: {from: prompt, batch: single}}",
        "{rule: vllm-v1, decode: {from: prompt}}",
        "{rule: vllm-v1, sequences: 2, prefill: {chunk: 4}, buckets: [4], decode: {from: prompt, arrivals: [0, 3, 1]}}",
        "{rule: vllm-v1, prefix: {block: 1}, decode: {from: 2, batch: {fixed: 2}}}",
        "{rule: sglang, prefill: {chunk: 4}, decode: {from: prompt}}",
    ],
)
@pytest.mark.parametrize("temperature", [0, 1])
def test_what_is_sampled_from_is_what_the_run_computes(
    recipe: Write, drawn_from: dict[int, list[Tensor]], schedule: str, temperature: float
) -> None:
    path = recipe(f"dtype: fp32, schedule: {schedule}", "right", temperature)
    study = generate(prepare(path, device="cpu"))
    ours = torch.stack([torch.stack(drawn_from[row]) for row in range(len(PROMPTS))])
    assert same_bits(replayed(study, "fp32"), ours)
    if temperature == 0:
        new = study.tokens.input_ids[study.tokens.loss_mask].view(len(PROMPTS), NEW)
        assert torch.equal(ours.argmax(-1), new)


def test_sampled_tokens_that_a_cache_would_find_are_refused(recipe: Write) -> None:
    """The second prompt goes on as the first is sampled to."""
    schedule = "dtype: fp32, schedule: {rule: sglang, prefix: {block: 1}, decode: {from: prompt, batch: {fixed: 1}}}"
    study = generate(prepare(recipe(schedule, "right"), device="cpu"))
    sampled = study.tokens.input_ids[0, : len(PROMPTS[0]) + 3].tolist()
    path = recipe(schedule, "right")
    rows = (PROMPTS[0], sampled, PROMPTS[2])
    (path.parent / "prompts.jsonl").write_text("".join(f'{{"input_ids": {row}}}\n' for row in rows), "utf-8")
    with pytest.raises(SpecError, match=r"recipe\.yaml:5: the prefix cache would find sampled tokens"):
        generate(prepare(path, device="cpu"))


def test_a_recipe_that_samples_under_a_schedule_runs(recipe: Write) -> None:
    report = bisect(recipe("dtype: fp32, schedule: {rule: vllm-v1, decode: {from: prompt}}"), device="cpu")
    assert report.run.scored_tokens == NEW * len(PROMPTS)
    assert report.schedule is not None
    prefill, decode = report.schedule.candidate_steps
    assert (prefill.phase, prefill.most_rows, prefill.most_head_rows) == ("prefill", 12, 3)
    assert (decode.phase, decode.steps, decode.most_rows) == ("decode", NEW - 1, 3)


@pytest.mark.parametrize(
    ("schedule", "problem"),
    [
        ("{pack: {length: 32}}", "`pack` is of whole sequences"),
        ("{rule: vllm-v1, verify: 2, decode: {from: prompt}}", "which drafted tokens `verify` would reject"),
        ("{rule: vllm-v1, decode: {from: 4}}", "`decode.from` is 4, and a prompt has 3 tokens"),
        ("{file: batches.jsonl}", r"a recorded schedule \(`file`\) knows its tokens"),
    ],
)
def test_a_schedule_that_needs_its_tokens_is_refused(recipe: Write, schedule: str, problem: str) -> None:
    path = recipe(f"schedule: {schedule}")
    batches = ['{"spans": [[0, 0, 11], [1, 2, 11], [2, 1, 11]]}']
    (path.parent / "batches.jsonl").write_text("\n".join(batches), "utf-8")
    with pytest.raises(SpecError, match=rf"recipe\.yaml:5: {problem}.*nothing can be sampled"):
        generate(prepare(path, device="cpu"))
