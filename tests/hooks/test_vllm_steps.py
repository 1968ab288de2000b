"""Steps as vLLM's scheduler tells them, made by hand: cache hits, preemption, drafts, and rows of no token."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from moeparity.hooks import files
from moeparity.hooks.vllm_steps import Rows, Steps
from moeparity.inputs.tokens import read_tokens
from moeparity.logs.opening import open_sampled
from moeparity.logs.record import Sampling
from moeparity.ops.kernels.text import SamplingRequest

CONFIG = SimpleNamespace(
    instance_id="1",
    parallel_config=SimpleNamespace(data_parallel_size=1, data_parallel_rank=0, rank=0),
    model_config=SimpleNamespace(logprobs_mode="processed_logprobs"),
)


class Engine:
    """A scheduler and a worker that say what a test tells them."""

    def __init__(self) -> None:
        self.steps = Steps(SimpleNamespace(vllm_config=CONFIG, block_size=2))
        self.rows = Rows(SimpleNamespace(vllm_config=CONFIG))
        self.computed: dict[str, int] = {}

    def step(
        self,
        *,
        new: dict[str, tuple[list[int], int]] | None = None,
        tokens: dict[str, int],
        resumed: dict[str, int] | None = None,
        sampled: dict[str, list[int]] | None = None,
        finished: tuple[str, ...] = (),
        order: list[str] | None = None,
        **more: Any,
    ) -> None:
        """One step: `new` requests with prompt and cached tokens, how many tokens of each, and what they gave."""
        new, resumed, sampled = new or {}, resumed or {}, sampled or {}
        self.computed |= {name: cached for name, (_, cached) in new.items()} | resumed
        cached = [name for name in tokens if name not in new]
        scheduled = SimpleNamespace(
            scheduled_new_reqs=[
                SimpleNamespace(
                    req_id=name, prompt_token_ids=ids, num_computed_tokens=count, sampling_params=more.get("asks")
                )
                for name, (ids, count) in new.items()
            ],
            scheduled_cached_reqs=SimpleNamespace(
                req_ids=cached, num_computed_tokens=[self.computed[n] for n in cached], resumed_req_ids=set(resumed)
            ),
            num_scheduled_tokens=tokens,
            total_num_scheduled_tokens=sum(tokens.values()),
            scheduled_spec_decode_tokens=more.get("drafts", {}),
            finished_req_ids=set(more.get("aborted", ())),
            preempted_req_ids=set(more.get("preempted", ())),
        )
        for name, count in tokens.items():
            self.computed[name] += count
        names = order or list(tokens)
        if "rows" in more:
            self.rows.begin(names, [0] * len(names), [tokens[name] for name in names])
            self.rows.end(more["rows"])
        outputs = [
            SimpleNamespace(
                request_id=name,
                new_token_ids=ids,
                new_logprobs=SimpleNamespace(logprobs=np.array([[-0.5]] * len(ids))),
                new_prompt_logprobs_tensors=None,
                finish_reason="length" if name in finished else None,
            )
            for name, ids in sampled.items()
        ]
        self.steps.see(scheduled, SimpleNamespace(req_ids=names), {0: SimpleNamespace(outputs=outputs)})


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    monkeypatch.setenv(files.VARIABLE, str(tmp_path))
    engine = Engine()
    yield engine
    engine.steps.close()
    assert engine.rows.file is not None
    engine.rows.file.close()


def lines(folder: Path, kind: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / f"vllm-1.{kind}.jsonl").read_text().splitlines()]


def test_chunks_a_cache_hit_and_the_workers_order(engine: Engine, tmp_path: Path) -> None:
    engine.step(new={"a": ([1, 2, 3, 4, 5], 0)}, tokens={"a": 3}, rows=3)
    engine.step(
        new={"b": ([1, 2, 9], 2)}, tokens={"a": 2, "b": 1}, sampled={"a": [6], "b": [7]}, order=["b", "a"], rows=4
    )
    engine.step(tokens={"a": 1, "b": 1}, sampled={"a": [8], "b": [9]}, finished=("a", "b"), rows=2)
    assert lines(tmp_path, "schedule") == [
        {"spans": [[0, 0, 3]], "phase": "chunk", "scored": [0], "requests": ["a"], "weights": "default"},
        {
            "spans": [[1, 2, 3], [0, 3, 5]],
            "phase": "chunk",
            "scored": [0, 1],
            "requests": ["b", "a"],
            "padding": 1,
            "copies": [[1, 0, 2, 0, 0]],
            "weights": "default",
        },
        {
            "spans": [[0, 5, 6], [1, 3, 4]],
            "phase": "decode",
            "scored": [0, 1],
            "requests": ["a", "b"],
            "weights": "default",
        },
    ]
    assert lines(tmp_path, "tokens")[1] == {
        "id": 1,
        "input_ids": [1, 2, 9, 7, 9],
        "mask": [0, 0, 0, 1, 1],
        "logprobs": [None, None, None, -0.5, -0.5],
    }


def test_a_preempted_request_begins_anew(engine: Engine, tmp_path: Path) -> None:
    engine.step(new={"a": ([1, 2], 0), "b": ([3, 4], 0)}, tokens={"a": 2, "b": 2}, sampled={"a": [5], "b": [6]})
    engine.step(tokens={"a": 1}, sampled={"a": [7]}, finished=("a",), preempted=("b",))
    engine.step(tokens={"b": 3}, resumed={"b": 0}, sampled={"b": [8]}, finished=("b",), aborted=("a",))
    assert [step["spans"] for step in lines(tmp_path, "schedule")] == [[[0, 0, 2], [1, 0, 2]], [[0, 2, 3]], [[2, 0, 3]]]
    assert lines(tmp_path, "schedule")[1]["preempted"] == ["b"]
    assert lines(tmp_path, "schedule")[2]["phase"] == "prefill"
    tokens = [(line["input_ids"], line["mask"]) for line in lines(tmp_path, "tokens")]
    assert tokens == [([1, 2, 5, 7], [0, 0, 1, 1]), ([3, 4, 6], [0, 0, 1]), ([3, 4, 6, 8], [0, 0, 0, 1])]


def test_rejected_drafts_and_a_row_behind_the_end_are_padding(engine: Engine, tmp_path: Path) -> None:
    engine.step(new={"a": ([1, 2], 0)}, tokens={"a": 2}, sampled={"a": [3]})
    engine.step(tokens={"a": 4}, drafts={"a": [4, 5, 6]}, sampled={"a": [4, 7]})
    engine.computed["a"] = 4
    engine.step(tokens={"a": 1}, sampled={"a": [8]}, finished=("a",))
    engine.step(tokens={"a": 1})
    engine.step(new={"b": ([9], 0)}, tokens={"a": 1, "b": 1}, sampled={"b": [1]}, finished=("b",))
    first, verified, _, late, behind = lines(tmp_path, "schedule")
    assert (first["phase"], verified["spans"], verified["verified"]) == ("prefill", [[0, 2, 4]], [0])
    assert (verified["phase"], verified["padding"]) == ("verify", 2)
    assert (late["spans"], behind["spans"], behind["padding"]) == ([[0, 5, 6]], [[1, 0, 1]], 1)


def test_a_sequence_that_is_stopped_ends_where_it_was_computed(engine: Engine, tmp_path: Path) -> None:
    engine.step(new={"a": ([1, 2, 3, 4, 5, 6], 0)}, tokens={"a": 3})
    engine.step(new={"b": ([7, 8], 0)}, tokens={"b": 2}, sampled={"b": [9]}, aborted=("a",), finished=("b",))
    assert [line["input_ids"] for line in lines(tmp_path, "tokens")] == [[1, 2, 3, 4], [7, 8, 9]]


def test_another_version_of_the_weights(engine: Engine, tmp_path: Path) -> None:
    engine.step(new={"a": ([1, 2], 0)}, tokens={"a": 2}, sampled={"a": [3]})
    engine.steps.weights = "step-7"
    engine.step(tokens={"a": 1}, sampled={"a": [4]}, finished=("a",))
    assert [step["weights"] for step in lines(tmp_path, "schedule")] == ["default", "step-7"]


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        ({"new": {"b": ([1, 2, 9], 1)}, "tokens": {"b": 2}}, "1 cached tokens of sequence 1"),
        ({"new": {"b": ([5, 6, 9], 2)}, "tokens": {"b": 1}}, "2 cached tokens of sequence 1"),
        ({"tokens": {"unknown": 1}, "resumed": {"unknown": 0}}, "AttributeError"),
    ],
)
def test_what_it_cannot_follow_ends_the_file(step: dict[str, Any], reason: str, engine: Engine, tmp_path: Path) -> None:
    engine.step(new={"a": ([1, 2, 3], 0)}, tokens={"a": 3}, sampled={"a": [4]})
    with pytest.raises((LookupError, AttributeError), match=r"cached tokens|NoneType"):
        engine.step(**step)
    engine.step(tokens={"a": 1}, sampled={"a": [5]})
    *_, last = lines(tmp_path, "schedule")
    assert reason in last["error"]
    assert len(lines(tmp_path, "schedule")) == 2


def test_what_a_request_asks_for_is_in_its_line(engine: Engine, tmp_path: Path) -> None:
    """A request that goes on after a preemption has its output so far as its prompt."""
    asks = SimpleNamespace(
        logit_bias={7: -2.5},
        bad_words_token_ids=[[4], [5, 6]],
        allowed_token_ids=None,
        min_tokens=3,
        all_stop_token_ids={9, 2},
        prompt_logprobs=None,
        temperature=0.7,
        top_p=0.9,
        top_k=0,
        min_p=0.0,
        repetition_penalty=1.0,
        presence_penalty=-0.5,
        frequency_penalty=0.0,
    )
    engine.step(new={"a": ([1, 2], 0)}, tokens={"a": 2}, sampled={"a": [3]}, asks=asks, rows=2)
    engine.step(tokens={"a": 3}, resumed={"a": 0}, sampled={"a": [8]}, rows=3)
    engine.step(tokens={"a": 1}, sampled={"a": [9]}, finished=("a",), rows=1)
    engine.step(new={"b": ([1], 0)}, tokens={"b": 1}, sampled={"b": [5]}, finished=("b",), rows=1)
    first, second, third = lines(tmp_path, "tokens")
    request = {"logit_bias": {"7": -2.5}, "bad_words_token_ids": [[4], [5, 6]], "stop_token_ids": [2, 9]}
    assert (first["request"], second["request"]) == ({**request, "min_tokens": 3}, {**request, "min_tokens": 2})
    assert not {"request", "sampling_params"} & third.keys()
    numbers = {"temperature": 0.7, "top_p": 0.9, "presence_penalty": -0.5, "logprobs_mode": "processed_logprobs"}
    assert first["sampling_params"] == second["sampling_params"] == numbers
    of_file = read_tokens(tmp_path / "vllm-1.tokens.jsonl").requests
    assert [request.min_tokens for request in of_file] == [3, 2, 0]
    assert of_file[2] == SamplingRequest()
    sequence = next(iter(open_sampled([tmp_path / "vllm-1.tokens.jsonl"])))
    stated = Sampling(temperature=0.7, top_p=0.9, presence_penalty=-0.5, logprobs_mode="processed")
    assert (sequence.sampling, sequence.request) == (stated, {**request, "min_tokens": 3})
