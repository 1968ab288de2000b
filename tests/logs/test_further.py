"""Top-k log-probabilities and hidden states beside tokens: of every producer that writes them, at their own places."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from moeparity import logs
from moeparity.errors import LogError
from moeparity.inputs.tokens.pads import Pads
from moeparity.logs.opening import open_sampled
from moeparity.logs.record import Sequence
from moeparity.logs.tokens import tokens_of
from tests.logs import own_files
from tests.logs.test_fixtures import FIXTURES
from tests.logs.truth import TRUTHS

Record = dict[str, Any]
WIDTH = 4
"""Of a hidden state."""


def top(ids: list[int], place: int) -> list[tuple[int, float]]:
    """What a server lists at a place: the token there, and two more, one of which it has no log-probability of."""
    return [(ids[place], -0.5 - place), ((ids[place] + 7) % 500, -1.25), ((ids[place] + 9) % 500, -9999.0)]


def edited(folder: Path, fixture: str, edit: Callable[[Record, list[int], int], None]) -> Path:
    """A fixture whose records were edited: given the ids of prompt and response, and the length of the prompt."""
    records = [json.loads(line) for line in (FIXTURES / fixture).read_text().splitlines()]
    for record, truth in zip(records, TRUTHS, strict=True):
        edit(record, truth.ids, truth.prompt)
    path = folder / Path(fixture).name
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def mapped(ids: list[int], place: int) -> Record:
    return {str(token): {"logprob": value, "rank": 1, "decoded_token": "x"} for token, value in top(ids, place)}


def triples(ids: list[int], place: int) -> list[list[Any]]:
    return [[value, token, None] for token, value in top(ids, place)]


def of_vllm(record: Record, ids: list[int], prompt: int) -> None:
    record["outputs"][0]["logprobs"] = [mapped(ids, place) for place in range(prompt, len(ids))]


def of_sglang(record: Record, ids: list[int], prompt: int) -> None:
    record["meta_info"]["output_top_logprobs"] = [triples(ids, place) for place in range(prompt, len(ids))]


def of_chat(record: Record, ids: list[int], prompt: int) -> None:
    record["prompt_token_ids"] = ids[:prompt]
    for place, entry in enumerate(record["choices"][0]["logprobs"]["content"], prompt):
        entry["top_logprobs"] = [{"token": f"token_id:{token}", "logprob": lp} for token, lp in top(ids, place)]


def of_completions(record: Record, ids: list[int], prompt: int) -> None:
    listed = [{f"token_id:{token}": lp for token, lp in top(ids, place)} for place in range(prompt, len(ids))]
    record["choices"][0]["logprobs"]["top_logprobs"] = listed


def of_ours(record: Record, ids: list[int], prompt: int) -> None:
    before = [None] * prompt
    record["top_logprobs"] = [*before, *[[*map(list, top(ids, place))] for place in range(prompt, len(ids))]]


SAMPLERS = {
    "vllm/outputs.jsonl": of_vllm,
    "sglang/generate.jsonl": of_sglang,
    "openai/chat.jsonl": of_chat,
    "openai/completions.jsonl": of_completions,
    "moeparity/log.jsonl": of_ours,
}


def assert_top(columns: dict[str, torch.Tensor], ids: list[int], first: int, side: str = "") -> None:
    """The columns hold what was written from a place on, and nothing before it."""
    listed, values = columns[f"{side}top_ids"], columns[f"{side}top_logprobs"]
    assert listed.shape == values.shape == (len(ids), 3)
    assert bool((listed[:first] == -1).all())
    assert bool(values[:first].isnan().all())
    for place in range(first, len(ids)):
        expected = top(ids, place)
        assert listed[place].tolist() == [token for token, _ in expected]
        assert values[place, :2].tolist() == [value for _, value in expected[:2]]
        assert math.isnan(values[place, 2]), "the server has none"


def by_row(path: Path) -> list[Sequence]:
    return list(open_sampled([path]))


@pytest.mark.parametrize("fixture", SAMPLERS)
def test_top_k_of_a_sampler(fixture: str, tmp_path: Path) -> None:
    sequences = by_row(edited(tmp_path, fixture, SAMPLERS[fixture]))
    for sequence, truth in zip(sequences, TRUTHS, strict=True):
        assert_top(dict(sequence.extra), truth.ids, truth.prompt)
    further = tokens_of(sequences).further
    assert further["top_ids"].shape == (len(TRUTHS), max(len(truth.ids) for truth in TRUTHS), 3)


@pytest.mark.parametrize("fixture", ["vllm/scored.jsonl", "sglang/scored.jsonl"])
def test_top_k_of_a_trainer_is_kept_apart(fixture: str, tmp_path: Path) -> None:
    def edit(record: Record, ids: list[int], prompt: int) -> None:
        if "meta_info" in record:
            record["meta_info"]["input_top_logprobs"] = [None, *[triples(ids, place) for place in range(1, len(ids))]]
        else:
            record["prompt_logprobs"] = [None, *[mapped(ids, place) for place in range(1, len(ids))]]

    producer, _ = fixture.split("/")
    sampler = {"vllm": "vllm/outputs.jsonl", "sglang": "sglang/generate.jsonl"}[producer]
    for sequence in logs.open([FIXTURES / sampler], trainer=[edited(tmp_path, fixture, edit)]):
        truth = TRUTHS[int(sequence.id.removeprefix("r"))]
        assert_top(dict(sequence.extra), truth.ids, 1, "trainer_")
        assert "top_ids" not in sequence.extra


def test_a_response_that_lists_its_own_tokens_alone_has_no_top_k() -> None:
    for fixture in ("vllm/outputs.jsonl", "openai/chat.jsonl"):
        assert all("top_ids" not in sequence.extra for sequence in open_sampled([FIXTURES / fixture]))


def test_texts_in_place_of_ids_name_no_token(tmp_path: Path) -> None:
    def edit(record: Record, ids: list[int], prompt: int) -> None:
        of_completions(record, ids, prompt)
        first = record["choices"][0]["logprobs"]["top_logprobs"][0]
        record["choices"][0]["logprobs"]["top_logprobs"][0] = {" the": -1.0, **first}

    records = by_row(edited(tmp_path, "openai/completions.jsonl", edit))
    assert all("top_ids" not in sequence.extra for sequence in records)


def states(count: int) -> list[list[float]]:
    return [[number + channel / 8 for channel in range(WIDTH)] for number in range(count)]


@pytest.mark.parametrize("rows_of", ["all", "those of a cached prompt left out", "the last"])
def test_hidden_states_of_sglang(rows_of: str, tmp_path: Path) -> None:
    """One list for the prompt, then a row for each step, so that the last row predicts the last token."""

    def edit(record: Record, ids: list[int], prompt: int) -> None:
        rows = states(len(ids) - 1)
        cached = 1 if "cached" in rows_of else 0
        nested = [rows[cached:prompt], *rows[prompt:]]
        record["meta_info"]["hidden_states"] = [rows[-1]] if rows_of == "the last" else nested

    for sequence, truth in zip(by_row(edited(tmp_path, "sglang/generate.jsonl", edit)), TRUTHS, strict=True):
        size = len(truth.ids)
        column, expected = sequence.extra["hidden_states"], torch.tensor(states(size - 1))
        first = {"all": 0, "the last": size - 2}.get(rows_of, 1)
        assert column.dtype == torch.float32
        assert torch.equal(column[first:-1], expected[first:])
        assert bool(column[:first].isnan().all())
        assert bool(column[-1].isnan().all())


def test_blocks_of_safetensors(tmp_path: Path) -> None:
    tensors = own_files.tensors()
    rows, width = tensors["input_ids"].shape
    ids, values = torch.randint(0, 500, (rows, width, 2)), -torch.rand(rows, width, 2)
    read = torch.randn(rows, width, WIDTH).bfloat16()
    blocks = {"top_ids": ids, "top_logprobs": values, "trainer_hidden_states": read}
    save_file({**tensors, **blocks}, tmp_path / "log.safetensors")
    for row, sequence in enumerate(by_row(tmp_path / "log.safetensors")):
        size = len(sequence.token_ids)
        assert torch.equal(sequence.extra["top_ids"], ids[row, :size])
        assert torch.equal(sequence.extra["top_logprobs"], values[row, :size].double())
        assert torch.equal(sequence.extra["trainer_hidden_states"], read[row, :size].float())


def test_they_follow_the_padding(tmp_path: Path) -> None:
    """Behind pads on the left; a sequence without any has none, and fewer are filled up."""
    path = edited(tmp_path, "moeparity/log.jsonl", of_ours)
    records = [json.loads(line) for line in path.read_text().splitlines()]
    width = max(len(record["input_ids"]) for record in records)
    for record in records:
        record["pads"] = {"before": width - len(record["input_ids"]), "behind": 0, "id": 0}
    del records[1]["top_logprobs"]
    records[2]["top_logprobs"] = [None if row is None else row[:2] for row in records[2]["top_logprobs"]]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    sequences = by_row(path)
    assert sequences[0].pads == Pads(before=width - len(TRUTHS[0].ids), behind=0, id=0)
    logged = tokens_of(sequences)
    block = logged.further["top_ids"]
    assert bool((block[1] == -1).all())
    assert bool((block[2, :, 2] == -1).all())
    assert torch.equal(block[0][logged.tokens.attention_mask[0]], sequences[0].extra["top_ids"])
    assert bool((block[0][~logged.tokens.attention_mask[0]] == -1).all())


def test_hidden_states_of_two_models_are_refused(tmp_path: Path) -> None:
    path = edited(
        tmp_path, "moeparity/log.jsonl", lambda record, ids, _: record.update(hidden_states=[[1.0]] * len(ids))
    )
    records = [json.loads(line) for line in path.read_text().splitlines()]
    records[1]["hidden_states"] = [[1.0, 2.0]] * len(records[1]["input_ids"])
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    message = (
        "log.jsonl:2: hidden_states has 2 numbers a token; .*log.jsonl:3: hidden_states has 1. Expected those of one"
    )
    with pytest.raises(LogError, match=message):
        tokens_of(open_sampled([path]))
