"""Every format gives back the three sequences that were written, bit for bit; the files are the producers' own."""

from __future__ import annotations

import base64
import gzip
import io
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from moeparity import logs
from tests.logs.broken import records
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
    sequences = read(name)
    assert len(sequences) == len(TRUTHS)
    for sequence, truth in zip(sequences, TRUTHS, strict=True):
        assert sequence.token_ids.tolist() == truth.ids
        assert sequence.prompt == truth.prompt
        mask = expected_mask(truth, name)
        assert sequence.mask.equal(mask)
        for values, truth_ in ((sequence.rollout, truth.rollout), (sequence.trainer, truth.trainer)):
            assert values is not None
            assert values.dtype == torch.float64
            assert values[mask].equal(torch.tensor(truth_, dtype=torch.float64)[mask])
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
    sampling = logs.Sampling(temperature=1.0, top_p=1.0, logprobs_mode="raw")
    for name in ("moeparity", "moeparity-parquet", "moeparity-safetensors"):
        assert {(s.sampling, s.group, s.trainer_version) for s in read(name)} == {(sampling, "maths", 7)}
    assert {sequence.sampling for sequence in read("nemo-rl")} == {logs.Sampling()}


def test_entropy_and_advantages_are_kept() -> None:
    (first, *_) = read("prime-rl")
    assert first.entropy.tolist() == [1.25] * len(first.token_ids)
    assert first.extra["advantages"].tolist() == [0.5] * len(first.token_ids)


def test_a_trainer_may_give_a_token_no_probability(tmp_path: Path) -> None:
    lines = records("moeparity/log.jsonl")
    lines[0]["trainer_logprobs"][4] = -math.inf
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    first, *_ = logs.open([path])
    assert first.trainer is not None
    assert first.trainer[4] == -math.inf


def test_packed_lines_and_whole_documents_are_read_too(tmp_path: Path) -> None:
    content = (FIXTURES / "sglang/generate.jsonl").read_text()
    document, packed = tmp_path / "a.json", tmp_path / "a.jsonl.gz"
    document.write_text(json.dumps([json.loads(line) for line in content.splitlines()], indent=2))
    packed.write_bytes(gzip.compress(content.encode()))
    scored = [FIXTURES / "sglang/scored.jsonl"]
    expected = [sequence.rollout.nan_to_num().tolist() for sequence in read("sglang")]
    for path in (document, packed):
        assert [s.rollout.nan_to_num().tolist() for s in logs.open([path], trainer=scored)] == expected
    by_place = logs.open([packed], trainer=[FIXTURES / "vllm/scored.jsonl"], join="order")
    assert [sequence.id for sequence in by_place] == ["r0", "r1", "r2"]


def test_what_only_one_side_has_may_be_left_out(tmp_path: Path) -> None:
    path = tmp_path / "scored.jsonl"
    path.write_text("".join((FIXTURES / "sglang/scored.jsonl").read_text().splitlines(keepends=True)[1:]))
    log = logs.open([FIXTURES / "sglang/generate.jsonl"], trainer=[path], partial=True)
    assert [sequence.id for sequence in log] == ["r1", "r2"]
    assert log.left_out == 1


def test_routes_are_kept_where_their_shape_is_told(tmp_path: Path) -> None:
    lines = records("sglang/generate.jsonl")
    size = len(TRUTHS[0].ids)
    routes = np.stack([np.arange(size - 1) % 4, np.arange(size - 1) % 4 + 4], -1)[:, None].astype("uint8")
    npy = io.BytesIO()
    np.save(npy, routes)
    shaped = base64.b64encode(npy.getvalue()).decode()
    for routes_text, is_kept in ((shaped, True), (base64.b64encode(routes.astype("<i4").tobytes()).decode(), False)):
        lines[0]["meta_info"]["routed_experts"] = routes_text
        path = tmp_path / "a.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        first, *_ = logs.open([path], trainer=[FIXTURES / "sglang/scored.jsonl"])
        assert ("routed_experts" in first.extra) == is_kept
    expected = [*routes.tolist(), [[-1, -1]]]
    row, *_ = _with_routes(tmp_path, expected)
    assert row.extra["routed_experts"].tolist() == expected


def _with_routes(folder: Path, routes: list[list[list[int]]]) -> list[logs.Sequence]:
    lines = records("moeparity/log.jsonl")
    lines[0]["routed_experts"] = [None if row == [[-1, -1]] else row for row in routes]
    path = folder / "own.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return list(logs.open([path]))


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
