"""Speculative decoding of transformers, live and bit for bit: an assistant's drafts, and those of prompt lookup."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from moeparity.engine.forward import forward
from moeparity.errors import SpecError, Where
from moeparity.numerics.bits import same_bits
from moeparity.plan.schedule.check import refuse
from moeparity.plan.schedule.drafts import Verified, verified
from moeparity.plan.schedule.steps import Schedule
from moeparity.plan.schedule.token_grid import TokenGrid, fillers
from tests.hf.compare import DTYPES, PROFILES, opened, tokens
from tests.hf.reference import load
from tests.hf.rollouts import moved
from tests.small_models import Shallow

HERE = Where(Path("drafts.jsonl"))
PROMPT, LENGTH = 6, 22


@contextmanager
def overheard(model: PreTrainedModel) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """The ids and the logits of each call of a model."""
    calls: list[tuple[Tensor, Tensor]] = []
    whole = model.forward

    @wraps(whole)  # `generate` looks at the signature for what the head may leave out
    def forward(*arguments: Any, **fields: Any) -> Any:
        output = whole(*arguments, **fields)
        calls.append((fields["input_ids"].clone(), output.logits.clone()))
        return output

    model.forward = forward
    try:
        yield calls
    finally:
        del model.forward


def generated(model: Any, prompt: Tensor, **how: Any) -> tuple[list[int], list[list[int]], Tensor]:
    """What assisted generation gives: the sequence, the drafts of each step, and the logits of each row that predicts
    one of its tokens, as the model gave them.
    """
    with overheard(model) as calls, torch.no_grad():
        ids = model.generate(prompt, max_length=LENGTH, do_sample=False, pad_token_id=0, eos_token_id=None, **how)[0]
    drafts, rows, length = [], [], prompt.shape[1]
    for step_ids, logits in calls:
        drafted = step_ids[0, step_ids.shape[1] - logits.shape[1] + 1 :].tolist()
        drafts.append(drafted)
        following = ids[length : length + len(drafted)].tolist()
        accepted = next((i for i, pair in enumerate(zip(drafted, following, strict=False)) if pair[0] != pair[1]),
                     len(following))  # fmt: skip
        rows.append(logits[0, : accepted + 1])
        length += accepted + 1
    return ids.tolist(), drafts, torch.cat(rows)[: len(ids) - prompt.shape[1]]


def computed(checkpoint: Path, sequence: list[int], of: Verified, profile: str, dtype: str) -> Tensor:
    """Logits [T, V] of the first sequence, by moeparity."""
    rows = [torch.tensor(row) for row in (sequence, *of.added)]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
    lengths = tuple(map(len, rows))
    grid = TokenGrid(spans=tuple((0, length) for length in lengths), prompts=lengths, length=max(lengths))
    steps = Schedule(steps=(*of.steps, *fillers(of.steps, grid)), positions="tokens")
    refuse(replace(steps, steps=of.steps), grid, HERE)
    output = forward(opened(checkpoint), ids, attention_mask=mask, profile=profile, dtype=dtype, schedule=steps)
    return output["logits"][0]


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("name", ["qwen3_moe", "deepseek_v3", "gpt_oss", "llama"])
@pytest.mark.parametrize("drafter", ["assistant", "prompt lookup"])
def test_drafts_are_verified_as_transformers_does(
    tmp_path: Path, shallow: Shallow, name: str, profile: str, dtype: str, drafter: str
) -> None:
    checkpoint = shallow(name)
    model = load(checkpoint, profile, DTYPES[dtype])
    prompt = tokens(opened(checkpoint).vocab_size, (1, PROMPT))
    prompt[0, 3:] = prompt[0, :3]
    if drafter == "assistant":
        (tmp_path / "older").mkdir()
        assistant = load(moved(checkpoint, tmp_path / "older", 1), profile, DTYPES[dtype])
        settings = assistant.generation_config
        settings.num_assistant_tokens, settings.num_assistant_tokens_schedule = 3, "constant"
        settings.assistant_confidence_threshold = 0.0
        how: dict[str, Any] = {"assistant_model": assistant}
    else:
        how = {"prompt_lookup_num_tokens": 3}
    sequence, drafts, live = generated(model, prompt, **how)
    of = verified([sequence], [PROMPT], [drafts], HERE, flat=False)
    assert of.drafted > of.accepted
    ours = computed(checkpoint, sequence, of, profile, dtype)
    assert same_bits(ours[PROMPT - 1 : LENGTH - 1].float(), live.float())


def test_a_state_cannot_go_back_to_the_last_accepted_draft(shallow: Shallow) -> None:
    checkpoint = shallow("qwen3_next")
    sequence = tokens(opened(checkpoint).vocab_size, (1, 8))[0].tolist()
    rejected = (sequence[4] + 1) % opened(checkpoint).vocab_size
    of = verified([sequence], [3], [[[], [rejected], [], [], []]], HERE, flat=False)
    with pytest.raises(SpecError, match="takes a state over from step to step"):
        computed(checkpoint, sequence, of, "hf-default", "fp32")
    accepted = verified([sequence], [3], [[[], sequence[4:7]]], HERE, flat=False)
    assert not accepted.added
    computed(checkpoint, sequence, accepted, "hf-default", "fp32")


def with_rejected(model: Any, sequence: list[int], drafts: list[list[int]], kept_drafts: int) -> Tensor:
    """The logits of each row that predicts a token of the sequence, by transformers, whose cache is cut so many tokens
    too late after each step that rejects a draft.
    """
    cache, rows, length, computed = DynamicCache(config=model.config), [], PROMPT, 0
    cache.activate_past_recording()
    for drafted in drafts:
        following = sequence[length : length + len(drafted)]
        pairs = zip(drafted, following, strict=False)
        count = next((i for i, pair in enumerate(pairs) if pair[0] != pair[1]), len(following))
        step_ids = [*sequence[computed:length], *drafted]
        with torch.no_grad():
            how = {"past_key_values": cache, "use_cache": True, "logits_to_keep": len(drafted) + 1}
            rows.append(model(torch.tensor([step_ids]), **how).logits[0, : count + 1])
        cache.crop(-max(len(drafted) - count - kept_drafts, 0))
        computed, length = length + count, length + count + 1
    return torch.cat(rows)


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("kept_drafts", [0, 1, 3])
@pytest.mark.parametrize("name", ["qwen3_moe", "deepseek_v3", "gpt_oss", "llama"])
def test_keys_of_rejected_drafts_that_stay_are_read_as_transformers_reads_them(
    shallow: Shallow, name: str, kept_drafts: int, dtype: str
) -> None:
    checkpoint = shallow(name)
    vocabulary = opened(checkpoint).vocab_size
    sequence = tokens(vocabulary, (1, LENGTH))[0].tolist()

    def wrong(place: int) -> int:
        return int((sequence[place] + 1) % vocabulary)

    drafts = [
        [],
        [sequence[7], wrong(8), sequence[9]],
        [sequence[9], sequence[10]],
        [wrong(12), wrong(13)],
        [],
        [sequence[14], sequence[15], wrong(16)],
        *([] for _ in range(4)),
        [],
    ]  # fmt: skip
    of = verified([sequence], [PROMPT], [drafts], HERE, flat=False, kept_drafts=kept_drafts)
    assert any(step.stale for step in of.steps) == bool(kept_drafts)
    live = with_rejected(load(checkpoint, "hf-eager", DTYPES[dtype]), sequence, drafts, kept_drafts)
    ours = computed(checkpoint, sequence, of, "hf-eager", dtype)[PROMPT - 1 :][: len(live)]
    assert same_bits(ours.float(), live.float())
    right = computed(
        checkpoint, sequence, verified([sequence], [PROMPT], [drafts], HERE, flat=False), "hf-eager", dtype
    )
    differs = (right[PROMPT - 1 :][: len(live)] != ours).any(-1).nonzero().flatten().tolist()
    # The first rejected draft stands at place 8: what predicts token 9 is the first that reads it.
    assert differs == ([*range(9 - PROMPT, len(live))] if kept_drafts else [])
