"""A log as a token file: what is read back of it is what each producer's file holds, bit for bit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from moeparity.errors import LogError
from moeparity.inputs.tokens import read_tokens
from moeparity.inputs.tokens.jsonl import lines
from moeparity.logs.formats.registry import FORMATS
from moeparity.logs.opening import open_sampled
from moeparity.logs.tokens import tokens_of
from tests.command import inside
from tests.logs.test_fixtures import BOTH, FIXTURES, JOINED, expected_mask
from tests.logs.truth import TRUTHS

NAMES = [name for name in (*BOTH, *JOINED) if name not in {"openai chat", "two of ours"}]


def sampled(name: str) -> Path:
    return FIXTURES / (BOTH[name][0] if name in BOTH else JOINED[name][0])


def test_every_format_is_tried() -> None:
    tried = {open_sampled([sampled(name)]).formats[0].name for name in NAMES}
    assert tried == set(FORMATS)


@pytest.mark.parametrize("ending", ["jsonl", "safetensors"])
@pytest.mark.parametrize("name", NAMES)
def test_what_a_log_holds_is_read_back(name: str, ending: str, tmp_path: Path) -> None:
    out = tmp_path / f"tokens.{ending}"
    process = inside("tokens", sampled(name), "--from-log", "--out", out)
    assert process.returncode == 0, process.stderr
    assert process.stdout.endswith(f"next: tokens: {{file: {out.name}, sampled_from: candidate}}\n")
    tokens = read_tokens(out)
    assert len(tokens.input_ids) == len(TRUTHS)
    for row, truth in enumerate(TRUTHS):
        real, mask = tokens.attention_mask[row], expected_mask(truth, name)
        assert tokens.logprobs is not None
        assert tokens.input_ids[row][real].tolist() == truth.ids
        assert tokens.loss_mask[row][real].equal(mask)
        values, recorded = tokens.logprobs[row][real], torch.tensor(truth.rollout, dtype=torch.float64)
        assert values[mask].view(torch.int64).equal(recorded[mask].view(torch.int64))
        assert bool(values[~mask].isnan().all())


def own_log(path: Path, *records: Mapping[str, object]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")
    return path


RECORD: dict[str, object] = {
    "id": "a",
    "input_ids": [5, 6, 7],
    "logprobs": [None, -0.5, -1.5],
    "mask": [0, 1, 1],
    "labels": "maths",
}
DENSE, FIRST, SECOND = [0, 0], [3, 1], [2, 0]


def test_routes_labels_and_what_is_said_of_the_sampler_are_kept(tmp_path: Path) -> None:
    routes = [[FIRST, SECOND], [SECOND, FIRST], None]
    cold = {"temperature": 0.7, "logprobs_mode": "processed"}
    routed = {**RECORD, "routed_experts": routes, "versions": [-1, 6, 7], "sampling_params": cold}
    unscored = {**RECORD, "id": "b", "mask": [0, 0, 0]}
    bare = {key: RECORD[key] for key in ("input_ids", "logprobs")} | {"id": "c"}
    log, out = own_log(tmp_path / "log.jsonl", routed, unscored, bare), tmp_path / "tokens.jsonl"
    process = inside("tokens", log, "--from-log", "--out", out)
    assert process.returncode == 0, process.stderr
    printed = " ".join(process.stdout.split())
    assert "2 sequences of up to 3 tokens, 4 tokens scored" in printed
    assert "routes of 2 tokens in 2 MoE layers" in printed
    assert "left out: 1 sequence without a scored token" in printed
    assert (
        '1 sequence at temperature 0.7: processed log-probabilities need `set: {"log_probs:temperature": 0.7}`'
        in printed
    )
    assert "weight versions that sampled: 6: 1 token, 7: 1 token" in printed
    tokens = read_tokens(out)
    assert tokens.routed_experts is not None
    assert tokens.routed_experts[0].tolist() == [[FIRST, SECOND], [SECOND, FIRST], [[-1, -1], [-1, -1]]]
    assert tokens.routed_experts[1].unique().tolist() == [-1]
    assert tokens.labels is not None
    assert [tokens.label_names[label] for label in tokens.labels[:, 1].tolist()] == ["maths", "no label"]


def test_layers_without_a_router_are_left_out() -> None:
    """Engines record them as zeros; a token file has none."""
    first = next(iter(open_sampled([sampled("moeparity")])))
    routes = torch.tensor([[DENSE, FIRST, SECOND]]).expand(len(first.token_ids), -1, -1)
    logged = tokens_of([replace(first, extra={"routed_experts": routes})])
    assert logged.layers == (1, 2)
    assert logged.tokens.routed_experts is not None
    assert logged.tokens.routed_experts[0, 0].tolist() == [FIRST, SECOND]


def test_so_many_sequences_are_written(tmp_path: Path) -> None:
    out = tmp_path / "tokens.jsonl"
    process = inside("tokens", sampled("vllm"), "--from-log", "--out", out, "--sequences", "2")
    assert process.returncode == 0, process.stderr
    assert read_tokens(out).input_ids.shape == (2, max(len(truth.ids) for truth in TRUTHS[:2]))


def test_lines_of_labelled_tokens_read_as_they_were(tmp_path: Path) -> None:
    """Also where a sequence has several labels, which no log gives."""
    logged = tokens_of(open_sampled([own_log(tmp_path / "log.jsonl", RECORD)])).tokens
    several = replace(logged, labels=torch.tensor([[0, 1, 0]]), label_names=("maths", "text"))
    out = tmp_path / "tokens.jsonl"
    out.write_text("".join(f"{line}\n" for line in lines(several)), "utf-8")
    labels = read_tokens(out).labels
    assert labels is not None
    assert labels.tolist() == [[0, 1, 0]]


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([{**RECORD, "prompt_tokens": 0}], r"log.jsonl:1: sequence a is a response without its prompt"),
        (
            [
                {**RECORD, "routed_experts": [[FIRST], [SECOND], None]},
                {**RECORD, "id": "b", "routed_experts": [[FIRST, SECOND], [FIRST, SECOND], None]},
            ],
            r"log.jsonl:2: routed_experts is \[2, 2\] per token; .*log.jsonl:1 has \[1, 2\]",
        ),
        (
            [{"id": "a", "input_ids": [5, 6], "trainer_logprobs": [None, -1.0]}],
            r"log.jsonl:1: no log-probabilities of the sampler\. Give the sampler's log",
        ),
        ([{**RECORD, "mask": [0, 0, 0]}], r"no token is scored"),
    ],
)
def test_what_no_forward_can_score_is_refused(
    records: list[Mapping[str, object]], message: str, tmp_path: Path
) -> None:
    log = open_sampled([own_log(tmp_path / "log.jsonl", *records)])
    with pytest.raises(LogError, match=message):
        tokens_of(log)


def test_several_files_are_logs_alone(tmp_path: Path) -> None:
    log = own_log(tmp_path / "log.jsonl", RECORD)
    process = inside("tokens", log, log)
    assert process.returncode == 2
    assert "one recipe or token file is read" in " ".join(process.stderr.split())
