"""What requests asked a sampler for, where its log-probabilities are of that: simulated, and named where it is why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from moeparity.doctor.batch import Batch
from moeparity.doctor.requested import without_cut
from moeparity.inputs.tokens.tokenset import TokenSet
from moeparity.logs.record import Sampling
from tests.doctor.programs import command, log, scored

PROCESSED = {"temperature": 1.0, "logprobs_mode": "processed"}


def biased(model: Any) -> None:
    """Three more on the logits of the even ids."""
    bias = torch.zeros(model.config.vocab_size)
    bias[::2] = 3.0
    model.lm_head.register_forward_hook(lambda _, __, logits: logits + bias)


def test_what_requests_ask_for_is_named(
    tmp_path: Path, few_ids: torch.Tensor, few_scores: torch.Tensor, small: Path
) -> None:
    """The bounds of noise are those of engines that no request asks for anything."""
    bias = {str(token): 3.0 for token in range(0, json.loads((small / "config.json").read_text())["vocab_size"], 2)}
    sampled = scored(small, few_ids, 6, kernel="eager", patch=biased)
    request = {"logit_bias": bias}
    path = log(tmp_path / "log.jsonl", few_ids, sampled, few_scores, sampling_params=PROCESSED, request=request)
    of = command(path, small, "--sampler", "hf-eager", out=tmp_path / "out.json")
    assert (of["answer"], of["blame"]["named"], of["exit"]) == ("found", ["log_probs:logit_bias"], 1)
    records = {record["party"]: record["mean_abs_delta"]["estimate"] for record in of["records"]}
    assert records["sampler"] < 0.1 < of["size"]["estimate"]
    assert {each["name"] for each in of["noise"]["statistics"] if each["recorded"] > each["bound"]} >= {"k3"}


def test_a_penalty_knows_what_is_prompt(
    tmp_path: Path, few_ids: torch.Tensor, few_scores: torch.Tensor, small: Path
) -> None:
    penalised = PROCESSED | {"presence_penalty": 0.5}
    path = log(tmp_path / "log.jsonl", few_ids, few_scores, few_scores, prompt=4, sampling_params=penalised)
    of = command(path, small, "--sampler", "hf-eager", "--seconds", "5", out=tmp_path / "out.json")
    assert "log_probs:presence_penalty is 0.0 in the trainer, 0.5 in the server" in of["printed"]


def test_requests_that_differ_are_said_and_not_simulated(
    tmp_path: Path, few_ids: torch.Tensor, few_scores: torch.Tensor, small: Path
) -> None:
    path = log(tmp_path / "log.jsonl", few_ids, few_scores, few_scores)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines = [{**line, "sampling_params": PROCESSED | {"top_k": 5 + row}} for row, line in enumerate(lines)]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    of = command(path, small, "--sampler", "hf-eager", out=tmp_path / "out.json")
    assert f"sampled in {len(lines)} different ways" in of["printed"]
    assert of["answer"] == "noise"


def test_a_token_that_a_simulation_does_not_keep_is_left_out() -> None:
    ids = torch.tensor([[1, 2, 3]])
    mask = torch.tensor([[False, True, True]])
    recorded = torch.tensor([[torch.nan, -0.5, -0.25]], dtype=torch.float64)
    tokens = TokenSet(input_ids=ids, loss_mask=mask, attention_mask=mask | True, logprobs=recorded)
    batch = Batch(tokens=tokens, left_out=0, stated=(Sampling(),), further={})
    simulated = [torch.tensor([-0.5, -0.25]).double(), torch.tensor([-torch.inf, -0.25]).double()]
    batch_without, says = without_cut(batch, simulated)
    assert batch_without.mask.tolist() == [False, True]
    assert says.startswith("1 token left out")
    assert without_cut(batch, simulated[:1]) == (batch, "")
    assert without_cut(batch, [simulated[1] * torch.inf]) == (batch, "")
