"""What requests ask for by token ids, as token files and logs have it."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from moeparity.bisection.digests.measure import of_tokens
from moeparity.errors import LogError
from moeparity.inputs.tokens import TokenSet, read_tokens
from moeparity.inputs.tokens.jsonl import lines
from moeparity.inputs.tokens.tensorfile import file_contents
from moeparity.logs.opening import open_sampled
from moeparity.logs.tokens import tokens_of
from moeparity.ops.kernels.requests import packed, unpacked
from moeparity.ops.kernels.text import SamplingRequest
from moeparity.output.writing import write_tensors

REQUEST = {
    "logit_bias": {"7": -2.5, "9": 100},
    "sequence_bias": [[[3, 7], 0.25]],
    "bad_words_token_ids": [[4], [5, 6]],
    "allowed_token_ids": [1, 2, 3],
    "min_tokens": 4,
    "stop_token_ids": [0, 2],
}
IDS = [1, 2, 3, 4]
BITMASK = base64.b64encode(torch.tensor([-1, 5], dtype=torch.int32).numpy().tobytes()).decode()


def read(folder: Path, *rows: dict[str, Any]) -> TokenSet:
    path = folder / "tokens.jsonl"
    path.write_text("".join(json.dumps({"input_ids": IDS, **row}) + "\n" for row in rows), "utf-8")
    return read_tokens(path)


def test_each_key_is_read(tmp_path: Path) -> None:
    (request, nothing) = read(tmp_path, {"request": REQUEST}, {}).requests
    assert request == SamplingRequest(
        biases=(((7,), -2.5), ((9,), 100.0), ((3, 7), 0.25)),
        bad_words=((4,), (5, 6)),
        allowed=(1, 2, 3),
        min_tokens=4,
        stop_ids=(0, 2),
    )
    assert nothing == SamplingRequest()


def test_a_file_without_requests_has_none(tmp_path: Path) -> None:
    assert read(tmp_path, {}, {}).requests == ()


def test_a_grammar_is_ids_or_the_bits_of_xgrammar(tmp_path: Path) -> None:
    (request,) = read(tmp_path, {"grammar": [None, [2, 33], BITMASK, None]}).requests
    assert {number: unpacked(words, 70).nonzero().flatten().tolist() for number, words in request.grammar.items()} == {
        1: [2, 33],
        2: [*range(32), 32, 34],
    }


@pytest.mark.parametrize("ending", ["jsonl", "safetensors"])
def test_what_is_written_reads_as_the_same(ending: str, tmp_path: Path) -> None:
    tokens = read(tmp_path, {"request": REQUEST, "grammar": [None, [2], BITMASK, None]}, {"request": {}})
    path = tmp_path / f"again.{ending}"
    if ending == "jsonl":
        path.write_text("\n".join(lines(tokens)), "utf-8")
    else:
        write_tensors(path, *file_contents(tokens))
    again = read_tokens(path)
    assert [replace(r, grammar={}) for r in again.requests] == [replace(r, grammar={}) for r in tokens.requests]
    for old, new in zip(tokens.requests, again.requests, strict=True):
        assert {n: w.tolist() for n, w in old.grammar.items()} == {n: w.tolist() for n, w in new.grammar.items()}
    assert of_tokens(again) == of_tokens(tokens)


@pytest.mark.parametrize(
    "request_",
    [
        SamplingRequest(),
        SamplingRequest(biases=(((7,), 1.0),)),
        SamplingRequest(biases=(((7,), 1.0000001),)),
        SamplingRequest(bad_words=((7,),)),
        SamplingRequest(grammar={2: packed([4])}),
        SamplingRequest(grammar={3: packed([4])}),
        SamplingRequest(grammar={2: packed([5])}),
    ],
)
def test_another_request_is_another_digest(request_: SamplingRequest, tmp_path: Path) -> None:
    tokens = read(tmp_path, {})
    plain = SamplingRequest(biases=(((8,), 1.0),))
    assert of_tokens(replace(tokens, requests=(request_,))) != of_tokens(replace(tokens, requests=(plain,)))
    assert of_tokens(replace(tokens, requests=(request_,))) != of_tokens(tokens)


def logged(folder: Path, **fields: Any) -> TokenSet:
    line = {"id": "a", "input_ids": IDS, "mask": [0, 0, 1, 1], "logprobs": [None, None, -1.0, -0.5], **fields}
    path = folder / "log.jsonl"
    path.write_text(json.dumps(line), "utf-8")
    return tokens_of(open_sampled([path])).tokens


def test_a_logs_sampling_params_are_the_request(tmp_path: Path) -> None:
    """Beside what a token file has no key for, and what engines write for nothing."""
    parameters = {"temperature": 0.7, "stop": ["x"], "bad_words": ["no"], "allowed_token_ids": None, "min_tokens": 0}
    tokens = logged(tmp_path, sampling_params={**parameters, "logit_bias": {"7": 1.5}, "stop_token_ids": [2]})
    assert tokens.requests == (SamplingRequest(biases=(((7,), 1.5),), stop_ids=(2,)),)
    assert logged(tmp_path, sampling_params=parameters).requests == ()


def test_a_logs_grammar_is_kept(tmp_path: Path) -> None:
    (request,) = logged(tmp_path, grammar=[None, None, [3, 5], None]).requests
    assert request.grammar[2].tolist() == [(1 << 3) + (1 << 5)]


def test_a_logs_request_that_cannot_be_is_refused_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(LogError, match=r"log.jsonl:1: min_tokens is 4 without stop_token_ids"):
        logged(tmp_path, sampling_params={"min_tokens": 4})
    with pytest.raises(LogError, match=r"log.jsonl:1: grammar has 1 entries; expected one for each of 4 tokens"):
        logged(tmp_path, grammar=[None])
