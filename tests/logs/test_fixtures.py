"""Every format gives back the three sequences that were written, bit for bit; the files are the producers' own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from moeparity import logs
from tests.logs.truth import STEP, TRUTHS, Truth

FIXTURES = Path(__file__).parent / "fixtures"
BOTH = {
    "nemo-rl": ["nemo-rl/train_data_step7.jsonl"],
    "prime-rl": ["prime-rl/token_exports/step_7/rank_0.jsonl"],
    "slime-train": ["slime/train_7.pt"],
    "moeparity": ["moeparity/log.jsonl"],
    "moeparity-parquet": ["moeparity/log.parquet"],
    "moeparity-safetensors": ["moeparity/log.safetensors"],
}
JOINED = {
    "sglang": ("sglang/generate.jsonl", "sglang/scored.jsonl"),
    "vllm": ("vllm/outputs.jsonl", "vllm/scored.jsonl"),
    "openai": ("openai/completions.jsonl", "openai/scored.jsonl"),
    "openai chat": ("openai/chat.jsonl", "openai/scored.jsonl"),
    "slime-rollout": ("slime/rollout_7.pt", "slime/train_7.pt"),
    "miles": ("miles/rollout_data/7.pt", "miles/train_data/7_0.pt"),
    "miles-columns": ("miles/dashboard_columns/rollout_7.parquet", "miles/train_data/7_0.pt"),
    "two of ours": ("moeparity/log.jsonl", "moeparity/log.parquet"),
}
ENGINES = ("sglang", "vllm", "openai", "openai chat")
"""One response each: what a tool would have put into it is generated like the rest, and all of it is scored."""


def read(name: str) -> list[logs.Sequence]:
    if name in BOTH:
        return list(logs.open([FIXTURES / path for path in BOTH[name]]))
    sampled, scored = JOINED[name]
    return list(logs.open([FIXTURES / sampled], trainer=[FIXTURES / scored]))


def expected_mask(truth: Truth, name: str) -> torch.Tensor:
    everything = torch.arange(len(truth.ids)) >= truth.prompt
    return everything if name in ENGINES else torch.tensor(truth.mask)


@pytest.mark.parametrize("name", [*BOTH, *JOINED])
def test_sequences_are_those_written(name: str) -> None:
    found = read(name)
    assert len(found) == len(TRUTHS)
    for sequence, truth in zip(found, TRUTHS, strict=True):
        assert sequence.token_ids.tolist() == truth.ids
        assert sequence.prompt == truth.prompt
        mask = expected_mask(truth, name)
        assert sequence.mask.equal(mask)
        for values, written in ((sequence.rollout, truth.rollout), (sequence.trainer, truth.trainer)):
            assert values is not None
            assert values.dtype == torch.float64
            assert values[mask].equal(torch.tensor(written, dtype=torch.float64)[mask])
        assert sequence.step == (None if name in ENGINES else STEP)


@pytest.mark.parametrize("name", ["vllm", "moeparity", "moeparity-parquet", "moeparity-safetensors"])
def test_weight_versions_stay_with_their_tokens(name: str) -> None:
    assert [sequence.versions.tolist() for sequence in read(name)] == [truth.versions for truth in TRUTHS]


@pytest.mark.parametrize("name", ["slime-rollout", "miles"])
def test_a_sample_of_two_versions_does_not_say_which_token_is_whose(name: str) -> None:
    first, mixed, _ = (sequence.versions.tolist() for sequence in read(name))
    assert set(first[TRUTHS[0].response]) == {6}
    assert set(mixed) == {-1}


def test_what_a_file_says_of_its_sampling_is_kept() -> None:
    asked = logs.Sampling(temperature=1.0, top_p=1.0, logprobs_mode="raw")
    for name in ("moeparity", "moeparity-parquet", "moeparity-safetensors"):
        assert {(s.sampling, s.group, s.trainer_version) for s in read(name)} == {(asked, "maths", 7)}
    assert {sequence.sampling for sequence in read("nemo-rl")} == {logs.Sampling()}


def test_entropy_and_advantages_are_kept() -> None:
    (first, *_) = read("prime-rl")
    assert first.entropy.tolist() == [1.25] * len(first.token_ids)
    assert first.extra["advantages"].tolist() == [0.5] * len(first.token_ids)


def test_a_folder_stands_for_the_logs_in_it() -> None:
    for folder in ("nemo-rl", "prime-rl", "prime-rl/token_exports", "prime-rl/token_exports/step_7"):
        assert len(list(logs.open([FIXTURES / folder]))) == len(TRUTHS)


def test_every_format_is_read_from_a_file_of_its_producer() -> None:
    read_here = {each for name in (*BOTH, *JOINED) for each in _formats(name)}
    assert read_here == set(logs.FORMATS)
    assert all(each.fixture.startswith("made by ") for each in logs.FORMATS.values())


def _formats(name: str) -> list[str]:
    sampled, scored = (BOTH[name], []) if name in BOTH else ([JOINED[name][0]], [JOINED[name][1]])
    opened = logs.open([FIXTURES / path for path in sampled], trainer=[FIXTURES / path for path in scored])
    return [each.name for each in opened.formats]
