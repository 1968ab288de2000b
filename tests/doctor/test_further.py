"""What a log holds beside its tokens' log-probabilities: it rules out hypotheses that these leave, never the cause."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from moeparity.doctor.further import columns
from moeparity.inputs.model import open_model
from tests.doctor.faulty import renormalised
from tests.doctor.programs import Patch, command, drifted, log, tokens

K = 20
KINDS = {"top-k": "top-k log-probabilities", "states": "hidden states"}


def computed(checkpoint: Path, ids: torch.Tensor, patch: Patch | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """What a transformers gives: log-probabilities fp32 [B, T, vocabulary], and what its head read, bf16 [B, T, H]."""
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.bfloat16).eval()
    if patch is not None:
        patch(model)
    read: list[torch.Tensor] = []
    model.lm_head.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0]))
    with torch.no_grad():
        logits = model(ids, use_cache=False).logits
    return torch.log_softmax(logits.float(), -1), read[0]


def written(
    path: Path, ids: torch.Tensor, sampler: tuple[torch.Tensor, torch.Tensor], trainer: torch.Tensor, *kinds: str
) -> Path:
    """A log of both sides with these kinds of further values of the sampler."""
    logprobs, states = sampler
    sides = [values[:, :-1].gather(-1, ids[:, 1:, None]).squeeze(-1) for values in (logprobs, trainer)]
    log(path, ids, *sides)
    records: list[dict[str, Any]] = [json.loads(line) for line in path.read_text().splitlines()]
    best, those = logprobs[:, :-1].topk(K)
    for row, record in enumerate(records):
        if "top-k" in kinds:
            pairs = torch.stack([those[row].double(), best[row].double()], -1).tolist()
            record["top_logprobs"] = [None, *[[[int(token), value] for token, value in each] for each in pairs]]
        if "states" in kinds:
            record["hidden_states"] = states[row].float().tolist()
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.fixture(scope="module")
def few() -> torch.Tensor:
    return tokens(3, 16)


@pytest.fixture(scope="module")
def right(fewer: Path, few: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return computed(fewer, few)


def clue_on(of: dict[str, Any], kind: str) -> str:
    (says,) = [clue["says"] for clue in of["clues"] if clue["says"].startswith(kind)]
    return str(says)


def unlisted(model: Any) -> None:
    """A norm whose weights are a twentieth too large."""
    model.model.layers[1].post_attention_layernorm.weight.data *= 1.05


def stale_head(previous: Path) -> Patch:
    def patch(model: Any) -> None:
        before = AutoModelForCausalLM.from_pretrained(previous, dtype=torch.bfloat16)
        model.lm_head.weight.data.copy_(before.lm_head.weight.data)

    return patch


@pytest.mark.parametrize("kind", ["top-k", "states"])
def test_one_sequence_is_enough(fewer: Path, few: torch.Tensor, kind: str, tmp_path: Path) -> None:
    """Of 15 tokens. Their log-probabilities alone leave hundreds of hypotheses."""
    ids = few[:1]
    sampler, (trainer, _) = computed(fewer, ids, renormalised), computed(fewer, ids)
    logs = [written(tmp_path / f"{len(kinds)}.jsonl", ids, sampler, trainer, *kinds) for kinds in ([], [kind])]
    alone, further = (
        command(path, "--checkpoint", fewer, "--sampler", "hf-eager", out=tmp_path / "out.json") for path in logs
    )
    assert (alone["answer"], alone["exit"]) == ("undecided", 3)
    assert len(alone["rivals"]) > 100
    assert alone["parting"] == [], "two of a hundred told apart settle nothing"
    assert (further["answer"], further["exit"], further["rivals"]) == ("named", 1, [])
    assert (further["explanations"][0]["name"], further["explanations"][0]["party"]) == ("renormalisation", "sampler")
    assert "renormalisation (sampler) explains 99." in clue_on(further, KINDS[kind])
    assert "it rules out that nothing is wrong, " in clue_on(further, KINDS[kind])


@pytest.mark.parametrize("kinds", [["top-k"], ["states"], ["top-k", "states"]])
def test_a_program_without_a_fault_is_noise(
    fewer: Path, few: torch.Tensor, right: tuple[torch.Tensor, torch.Tensor], kinds: list[str], tmp_path: Path
) -> None:
    """Its batches have one sequence each; nothing is simulated beside noise, so nothing is held to these values."""
    alone = [torch.cat(parts) for parts in zip(*(computed(fewer, row[None]) for row in few), strict=True)]
    path = written(tmp_path / "log.jsonl", few, (alone[0], alone[1]), right[0], *kinds)
    of = command(path, "--checkpoint", fewer, out=tmp_path / "out.json")
    assert (of["answer"], of["exit"], of["rivals"]) == ("noise", 0, [])


@pytest.mark.parametrize("kind", ["top-k", "states"])
def test_what_no_hypothesis_is_gets_no_name(
    fewer: Path, few: torch.Tensor, right: tuple[torch.Tensor, torch.Tensor], kind: str, tmp_path: Path
) -> None:
    path = written(tmp_path / "log.jsonl", few, computed(fewer, few, unlisted), right[0], kind)
    of = command(path, "--checkpoint", fewer, "--sampler", "hf-eager", out=tmp_path / "out.json")
    assert of["answer"] in {"undecided", "not explained"}


def test_hidden_states_tell_a_stale_head_from_a_stale_body(
    fewer: Path, few: torch.Tensor, right: tuple[torch.Tensor, torch.Tensor], tmp_path: Path
) -> None:
    previous = drifted(fewer, tmp_path / "step-1")
    path = written(tmp_path / "log.jsonl", few, computed(fewer, few, stale_head(previous)), right[0], "states")
    of = command(
        path, "--checkpoint", fewer, "--previous", previous, "--sampler", "hf-eager", out=tmp_path / "out.json"
    )
    assert of["explanations"][0]["name"] == "stale weights of lm_head"
    says = clue_on(of, "hidden states")
    assert "that nothing is wrong" not in says, "what the head reads is as it was to be"


def test_values_of_another_model_are_no_column(fewer: Path, few: torch.Tensor) -> None:
    model, mask = open_model(fewer, device="cpu", values=False), torch.ones_like(few, dtype=torch.bool)
    mask[:, 0] = False
    width = model.graph.sizes["hidden"]
    blocks = {
        "top_ids": torch.tensor([5, model.vocab_size, -1]).expand(*few.shape, 3),
        "top_logprobs": torch.tensor([-1.0, -2.0, -3.0]).expand(*few.shape, 3),
        "hidden_states": torch.zeros(*few.shape, width + 1),
        "trainer_hidden_states": torch.full((*few.shape, width), torch.nan),
    }
    (column,) = columns(blocks, mask, model)
    assert (column.party, column.recorded.unique().tolist(), column.index.unique().tolist()) == ("sampler", [-1.0], [5])
    assert torch.equal(column.position, torch.arange(few.shape[1] - 1).repeat(len(few))), (
        "a token is computed before it"
    )
    states = torch.randn(*few.shape, width)
    (column,) = columns({"trainer_hidden_states": states}, mask, model)
    assert (column.party, column.node) == ("trainer", "norm")
    assert torch.equal(column.recorded, states[:, :-1].double().flatten())


def test_of_too_many_values_some_tokens_are_drawn_evenly(
    fewer: Path, few: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, mask = open_model(fewer, device="cpu", values=False), torch.ones_like(few, dtype=torch.bool)
    mask[:, 0] = False
    width = model.graph.sizes["hidden"]
    monkeypatch.setattr("moeparity.doctor.further._MOST", 3 * width)
    states = torch.randn(*few.shape, width)
    (column,) = columns({"hidden_states": states}, mask, model)
    at = torch.stack([column.sequence, column.position], 1).view(3, width, 2)[:, 0].tolist()
    assert at == [[0, 0], [1, 7], [2, few.shape[1] - 2]]
    assert torch.equal(column.recorded.view(3, width), torch.stack([states[row, place] for row, place in at]).double())
