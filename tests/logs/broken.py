"""Broken logs: a fixture with one edit, and what its refusal says."""

from __future__ import annotations

import gzip
import json
import pickle
import sys
import zipfile
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import torch
from pyarrow import parquet

from moeparity import logs, paths
from moeparity.logs.formats import parquet_files
from moeparity.logs.opening import open_sampled
from tests.logs import own_files
from tests.logs.truth import TRUTHS
from tests.logs.vocabulary import tokenizer_file

FIXTURES = Path(__file__).parent / "fixtures"
NEMO = "nemo-rl/train_data_step7.jsonl"
PRIME = "prime-rl/token_exports/step_7/rank_0.jsonl"
Edit = Callable[[list[dict[str, Any]]], Any]


def records(name: str) -> list[dict[str, Any]]:
    """The lines of a fixture."""
    return [json.loads(line) for line in (FIXTURES / name).read_text().splitlines()]


@dataclass(frozen=True, slots=True)
class Case:
    """The lines of `source` after `edit`, read as `role`; `says` stands in the message, after the place."""

    source: str
    edit: Edit
    says: str
    role: str = "rollout"
    options: dict[str, Any] = field(default_factory=dict)


def _set(*path: Any, to: Any) -> Edit:
    def edit(lines: list[dict[str, Any]]) -> None:
        place: Any = lines[0]
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = to

    return edit


def _drop(*path: Any) -> Edit:
    def edit(lines: list[dict[str, Any]]) -> None:
        place: Any = lines[0]
        for key in path[:-1]:
            place = place[key]
        del place[path[-1]]

    return edit


def _of(*path: Any, to: Callable[[Any], Any]) -> Edit:
    def edit(lines: list[dict[str, Any]]) -> None:
        place: Any = lines[0]
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = to(place[path[-1]])

    return edit


def _echo(values: list[Any], lines: list[dict[str, Any]], prompt: int) -> None:
    values[0] = None
    lines[0]["usage"]["prompt_tokens"] = prompt


def _echo_all(lines: list[dict[str, Any]]) -> None:
    content = lines[0]["choices"][0]["logprobs"]["content"]
    content[0]["logprob"] = None
    lines[0]["usage"]["prompt_tokens"] = len(content)


ENTRIES = ("meta_info", "output_token_logprobs")
OUTPUT = ("outputs", 0)
CHOICE = ("choices", 0)
LINES: dict[str, Case] = {
    # Top-k and hidden states
    "a top token without a number": Case(
        "vllm/outputs.jsonl",
        _of("outputs", 0, "logprobs", to=lambda v: [{**v[0], "x": {"logprob": -1.0}}, *v[1:]]),
        "logprobs holds 'x' as a token id; expected a whole number from 0",
    ),
    "a top token past all vocabularies": Case(
        "vllm/outputs.jsonl",
        _of("outputs", 0, "logprobs", to=lambda v: [{**v[0], str(2**40): {"logprob": -1.0}}, *v[1:]]),
        f"logprobs holds {2**40}; expected token ids",
    ),
    "a top probability": Case(
        "vllm/outputs.jsonl",
        _of("outputs", 0, "logprobs", to=lambda v: [{**v[0], "7": {"logprob": 0.5}}, *v[1:]]),
        "logprobs holds 0.5 as a log-probability; expected nats, at most 0",
    ),
    "a word as a top log-probability": Case(
        "vllm/outputs.jsonl",
        _of("outputs", 0, "logprobs", to=lambda v: [{**v[0], "7": {"logprob": "-1"}}, *v[1:]]),
        "logprobs holds '-1'; expected a log-probability, or null",
    ),
    "fewer top positions": Case(
        "sglang/generate.jsonl",
        _set("meta_info", "output_top_logprobs", to=[[[-1.0, 5, None], [-2.0, 6, None]]]),
        "output_top_logprobs has 1 positions; expected one for each of 9 tokens",
    ),
    "top pairs": Case(
        "sglang/generate.jsonl",
        _set("meta_info", "output_top_logprobs", to=[[[-1.0, 5]]] * 9),
        "expected lists of [log-probability, id, text]",
    ),
    "hidden states that are none": Case(
        "sglang/generate.jsonl", _set("meta_info", "hidden_states", to=5), "hidden_states is 5; expected a list"
    ),
    "more hidden states than tokens": Case(
        "sglang/generate.jsonl",
        _set("meta_info", "hidden_states", to=[[1.0]] * 12),
        "hidden_states has 12 rows; expected 1 to 11, one for each token with another behind it",
    ),
    "hidden states of several widths": Case(
        "sglang/generate.jsonl",
        _set("meta_info", "hidden_states", to=[[1.0], [1.0, 2.0]]),
        "hidden_states has rows of 1 and 2; expected numbers, as many in each row",
    ),
    "hidden states of words": Case(
        "sglang/generate.jsonl",
        _set("meta_info", "hidden_states", to=[["a"]]),
        "hidden_states holds something other than numbers",
    ),
    "rows of another length": Case(
        "moeparity/log.jsonl", _set("top_logprobs", to=[None]), "top_logprobs has 1 rows; expected one for each of 12"
    ),
    "pairs that are none": Case(
        "moeparity/log.jsonl",
        _set("top_logprobs", to=[None, [[5]], *[None] * 10]),
        "top_logprobs holds something else than lists of [token id, log-probability]",
    ),
    "a grammar of another length": Case(
        "moeparity/log.jsonl",
        _set("grammar", to=[None]),
        "grammar has 1 entries; expected one for each of 12 tokens",
    ),
    # NeMo-RL
    "no batch of one": Case(NEMO, _set("token_ids", to=5), "token_ids is 5; expected a list of one"),
    "two in a batch": Case(NEMO, _of("input_lengths", to=lambda v: v * 2), "input_lengths is a list of 2; expected"),
    "ids that are no list": Case(NEMO, _set("token_ids", to=[5]), "token_ids is 5; expected a list"),
    "longer than its padding": Case(NEMO, _set("input_lengths", to=[99]), "input_lengths is 99; token_ids has 16"),
    "scored padding": Case(NEMO, _set("input_lengths", to=[11]), "scores padding, which begins at token 11"),
    "shifted mask": Case(
        NEMO, _of("token_loss_mask", to=lambda v: [[1, *v[0][1:]]]), "scores token 0, which nothing predicts"
    ),
    "a mask of twos": Case(NEMO, _of("token_loss_mask", to=lambda v: [[2, *v[0][1:]]]), "something other than 0 and 1"),
    "an entropy below 0": Case(
        PRIME,
        _of("entropy", to=lambda v: [-1.0] * len(v)),
        "is scored, but its entropy is -1; expected nats, at least 0",
    ),
    "an entropy of no vocabulary": Case(
        PRIME, _of("entropy", to=lambda v: [1e9] * len(v)), "its entropy is 1e+09; expected nats, at most 30"
    ),
    "a current log-probability above 0": Case(
        "moeparity/log.jsonl",
        lambda lines: lines[0].update(current_logprobs=[0.5] * len(lines[0]["input_ids"])),
        "its current log-probability is 0.5; expected nats, at most 0",
    ),
    "a multiplier below 0": Case(NEMO, _set("sample_loss_mask", to=[-1]), "sample_loss_mask is -1"),
    "a field gone": Case(NEMO, _drop("prev_logprobs"), "prev_logprobs is missing"),
    "a null field": Case(NEMO, _set("prev_logprobs", to=[None]), "prev_logprobs is null"),
    "no index": Case(NEMO, _drop("idx"), "idx is missing"),
    "an index that is none": Case(NEMO, _set("idx", to=-1), "idx is -1; expected a whole number from 0"),
    "short log-probabilities": Case(
        NEMO, _of("prev_logprobs", to=lambda v: [v[0][:-1]]), "prev_logprobs has 15 entries; the sequence has 16"
    ),
    "null where scored": Case(
        NEMO,
        _of("prev_logprobs", to=lambda v: [[*v[0][:4], None, *v[0][5:]]]),
        "token 4 of sequence 7/0 is scored, but the trainer's log-probability there is missing",
    ),
    "a word for a number": Case(
        NEMO, _of("prev_logprobs", to=lambda v: [[*v[0][:4], "-1", *v[0][5:]]]), "prev_logprobs[4] is '-1'"
    ),
    "false for a number": Case(
        NEMO, _of("prev_logprobs", to=lambda v: [[*v[0][:4], False, *v[0][5:]]]), "prev_logprobs[4] is false"
    ),
    "a number past JSON's": Case(
        NEMO, _of("prev_logprobs", to=lambda v: [[10**400, *v[0][1:]]]), "not JSON: number is"
    ),
    "a number past a float": Case(
        NEMO, _of("prev_logprobs", to=lambda v: [[10**400, float("nan"), *v[0][2:]]]), "holds a number too large for a"
    ),
    "a probability": Case(
        NEMO,
        _of("generation_logprobs", to=lambda v: [[*v[0][:4], 0.9, *v[0][5:]]]),
        "the sampler's log-probability there is 0.9; expected nats, at most 0",
    ),
    "minus infinity": Case(
        NEMO,
        _of("generation_logprobs", to=lambda v: [[*v[0][:4], float("-inf"), *v[0][5:]]]),
        "the sampler's log-probability there is -inf: it could not have made this token",
    ),
    "NaN": Case(
        NEMO,
        _of("generation_logprobs", to=lambda v: [[*v[0][:4], float("nan"), *v[0][5:]]]),
        "the sampler's log-probability there is missing (NaN or null)",
    ),
    "placeholders": Case(
        NEMO, _of("prev_logprobs", to=lambda _: [[0.0] * 16]), "the trainer's log-probabilities are 0 at all 9 scored"
    ),
    "a negative token": Case(NEMO, _of("token_ids", to=lambda v: [[-5, *v[0][1:]]]), "token_ids holds -5"),
    "a fraction of a token": Case(NEMO, _of("token_ids", to=lambda v: [[1.5, *v[0][1:]]]), "holds 1.5 at index 0"),
    "a token past 64 bits": Case(NEMO, _of("token_ids", to=lambda v: [[2**63, *v[0][1:]]]), "past 64 bits"),
    "true for a token": Case(NEMO, _of("token_ids", to=lambda v: [[True, *v[0][1:]]]), "holds true at index 0"),
    "nothing scored": Case(
        NEMO, lambda lines: [line.update(sample_loss_mask=[0.0]) for line in lines], "no token is scored"
    ),
    "an id twice": Case(NEMO, lambda lines: lines[1].update(idx=0), "sequence 7/0 comes a second time"),
    "another format's line": Case(
        NEMO, lambda lines: lines.__setitem__(1, records(PRIME)[0]), "no record of NeMo-RL train_data_step*.jsonl"
    ),
    # prime-rl
    "another schema": Case(PRIME, _set("schema_version", to=2), "schema_version is 2; this reader knows 1"),
    "a slipped column": Case(
        PRIME,
        _of("trainer_logprobs", to=lambda v: [*v[1:], v[0]]),
        "The columns do not belong together",
    ),
    "a column of nulls": Case(
        PRIME,
        lambda lines: [line.update(inference_logprobs=[None] * len(line["token_ids"])) for line in lines],
        "is missing (NaN or null)",
    ),
    "no name of an environment": Case(PRIME, _set("env_name", to=[]), "env_name is a list; expected a word"),
    # SGLang
    "no meta_info": Case("sglang/generate.jsonl", _set("meta_info", to=5), "no log that is known"),
    "no log-probabilities asked": Case("sglang/generate.jsonl", _drop(*ENTRIES), "Ask for them with return_logprob"),
    "a piece of a stream": Case("sglang/generate.jsonl", _of(*ENTRIES, to=lambda v: v[2:]), "A piece of a stream?"),
    "other output_ids": Case("sglang/generate.jsonl", _set("output_ids", 0, to=9), "output_ids are not the tokens of"),
    "pairs": Case("sglang/generate.jsonl", _of(*ENTRIES, 0, to=lambda v: v[:2]), "[log-probability, token id, text]"),
    "a negative id": Case("sglang/generate.jsonl", _set(*ENTRIES, 0, 1, to=-1), "holds token id -1"),
    "a prompt of another length": Case(
        "sglang/generate.jsonl", _set("input_ids", to=[1, 2]), "input_ids has 2 tokens; prompt_tokens is 3"
    ),
    "spans outside": Case(
        "sglang/generate.jsonl", _set("meta_info", "weight_versions", to=[["6", 0, 99]]), "no span of 9 response tokens"
    ),
    "spans that are none": Case(
        "sglang/generate.jsonl", _set("meta_info", "weight_versions", to=[3]), "version, start"
    ),
    "spans in a word": Case("sglang/generate.jsonl", _set("meta_info", "weight_versions", to="x"), "a list of spans"),
    "no temperature": Case("sglang/generate.jsonl", _set("sampling_params", to={"temperature": "hot"}), "is 'hot'"),
    "a mode in a list": Case(
        "sglang/generate.jsonl", _set("sampling_params", to={"logprobs_mode": ["raw"]}), "is a list"
    ),
    "no top_k": Case("sglang/generate.jsonl", _set("sampling_params", to={"top_k": 0.5}), "top_k is 0.5"),
    "no mode": Case("sglang/generate.jsonl", _set("request", to={"logprobs_mode": "x"}), "expected raw or processed"),
    "logits": Case(
        "sglang/generate.jsonl", _set("request", to={"logprobs_mode": "raw_logits"}), "Logits are no log-probabilities"
    ),
    "a penalty in words": Case(
        "sglang/generate.jsonl", _set("request", to={"presence_penalty": "much"}), "expected a number"
    ),
    "parameters in a word": Case(
        "sglang/generate.jsonl", _set("request", to="x"), "request is 'x'; expected a mapping"
    ),
    "routes that are none": Case(
        "sglang/generate.jsonl", _set("meta_info", "routed_experts", to={"data": 1}), "without data and shape"
    ),
    "not scored": Case(
        "sglang/scored.jsonl", _set("meta_info", "input_token_logprobs", to=[]), "Send prompt and response", "trainer"
    ),
    # vLLM
    "logprobs not asked": Case("vllm/outputs.jsonl", _set(*OUTPUT, "logprobs", to=None), "no logprobs of the outputs"),
    "too few positions": Case("vllm/outputs.jsonl", _of(*OUTPUT, "logprobs", to=lambda v: v[1:]), "is 8 positions"),
    "another token's": Case(
        "vllm/outputs.jsonl", _set(*OUTPUT, "logprobs", 0, to={"1": {"logprob": -1}}), "no logprob of the token there"
    ),
    "nothing scored in vLLM": Case(
        "vllm/scored.jsonl", _set("prompt_logprobs", to=None), "no prompt_logprobs", "trainer"
    ),
    # OpenAI
    "tokens as text": Case("openai/completions.jsonl", _drop(*CHOICE, "token_ids"), "which several tokens may share"),
    "other ids than texts": Case("openai/chat.jsonl", _set(*CHOICE, "token_ids", to=[1] * 9), "token_ids are not the"),
    "ids of another length": Case("openai/chat.jsonl", _set(*CHOICE, "token_ids", to=[1] * 8), "token_ids are not the"),
    "no logprobs": Case("openai/chat.jsonl", _set(*CHOICE, "logprobs", to=None), "logprobs: true for chat"),
    "none to read": Case("openai/completions.jsonl", _set(*CHOICE, "logprobs", "tokens", to=[]), "lists no tokens"),
    "the server's sentinel": Case(
        "openai/chat.jsonl",
        _set(*CHOICE, "logprobs", "content", 2, "logprob", to=-9999.0),
        "-9999, which servers write for one they do not have",
        options={"trainer": [FIXTURES / "openai/scored.jsonl"]},
    ),
    "a piece of a chat": Case(
        "openai/chat.jsonl",
        _of(*CHOICE, "logprobs", "content", to=lambda v: v[1:]),
        "logprobs of 8 generated tokens; usage has 9 completion_tokens",
    ),
    "an echo past the tokens": Case(
        "openai/completions.jsonl",
        lambda lines: _echo(lines[0]["choices"][0]["logprobs"]["token_logprobs"], lines, 40),
        "usage has 40 prompt_tokens; logprobs has 9",
    ),
    "an echo of another prompt": Case(
        "openai/completions.jsonl",
        _set(*CHOICE, "logprobs", "token_logprobs", 0, to=None),
        "prompt_token_ids are not the echoed tokens",
    ),
    "nothing but a prompt": Case("openai/chat.jsonl", _echo_all, "no generated token"),
    "nothing scored by OpenAI": Case("openai/chat.jsonl", lambda _: None, "no scored prompt", "trainer"),
    # moeparity's own
    "an unknown key": Case("moeparity/log.jsonl", _set("logprob", to=[]), "unknown key 'logprob'"),
    "no id": Case("moeparity/log.jsonl", _drop("id"), "id is missing"),
    "an id that is a list": Case("moeparity/log.jsonl", _set("id", to=[]), "id is a list; expected a word"),
    "no tokens": Case("moeparity/log.jsonl", _set("input_ids", to=[]), "input_ids is empty"),
    "an id beyond 31 bits": Case(
        "moeparity/log.jsonl",
        _set("input_ids", 1, to=2**31),
        "holds 2147483648; expected token ids, from 0 to 2147483647",
    ),
    "one side": Case("moeparity/log.jsonl", _drop("trainer_logprobs"), "no log-probabilities of the trainer"),
    "the other side": Case("moeparity/log.jsonl", _drop("logprobs"), "no log-probabilities of the sampler"),
    "labels per token": Case("moeparity/log.jsonl", _set("labels", to=["a"]), "labels is a list; expected one word"),
    "pads of two numbers": Case(
        "moeparity/log.jsonl", _set("pads", to={"before": 1, "behind": 0}), 'expected {"before": NUMBER'
    ),
    "a prompt past the end": Case("moeparity/log.jsonl", _set("prompt_tokens", to=50), "prompt_tokens is 50"),
    "routes of some tokens": Case("moeparity/log.jsonl", _set("routed_experts", to=[None]), "routed_experts is 1 rows"),
    "routes in a word": Case("moeparity/log.jsonl", _set("routed_experts", to="x"), "routed_experts is 'x'"),
    "an expert twice": Case(
        "moeparity/log.jsonl", _set("routed_experts", to=[[[1, 1]]] * 12), "sends a token to [1, 1]"
    ),
    "too few versions": Case("moeparity/log.jsonl", _set("versions", to=[1]), "versions has 1 entries"),
    # what is known to hold nothing
    "verl's rollouts": Case(
        NEMO, lambda lines: lines.__setitem__(0, {"input": "q", "output": "a", "score": 1}), "verl's rollout JSONL"
    ),
    "a distillation": Case(
        NEMO,
        lambda lines: lines.__setitem__(0, {"content": [""], "input_lengths": [3], "idx": 0}),
        "NeMo-RL distillation",
    ),
    "something else": Case(NEMO, lambda lines: lines.__setitem__(0, {"loss": 1}), "no log that is known; it has loss"),
    "two formats at once": Case(
        NEMO, lambda lines: lines[0].update(records(PRIME)[0]), "could be any of nemo-rl, prime-rl"
    ),
    "no such format": Case(NEMO, lambda _: None, "--format nemo: expected one of", options={"format": "nemo"}),
    "a format of other files": Case(
        NEMO, lambda _: None, "--format slime-train is slime or miles", options={"format": "slime-train"}
    ),
    "the wrong format": Case(NEMO, lambda _: None, "no record of prime-rl", options={"format": "prime-rl"}),
}


def write(case: Case, folder: Path) -> Path:
    """The broken file, under the fixture's name."""
    lines = deepcopy(records(case.source))
    case.edit(lines)
    path = folder / Path(case.source).name
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def _bytes(name: str, content: bytes | Callable[[], bytes]) -> Callable[[Path], Path]:
    def write_to(folder: Path) -> Path:
        path = folder / name
        path.write_bytes(content if isinstance(content, bytes) else content())
        return path

    return write_to


def _torch(value: Any) -> Callable[[Path], Path]:
    def write_to(folder: Path) -> Path:
        torch.save(value, folder / "a.pt")
        return folder / "a.pt"

    return write_to


def _sample(**changes: Any) -> Callable[[Path], Path]:
    truth = TRUTHS[0]
    sample = {"index": 0, "tokens": truth.ids, "response_length": 9, "rollout_log_probs": truth.rollout[3:], **changes}
    return _torch({"rollout_id": 7, "samples": [sample]})


def _tensors(**changes: Any) -> Callable[[Path], Path]:
    def write_to(folder: Path) -> Path:
        from safetensors.torch import save_file

        tensors = {**own_files.tensors(), **changes}
        metadata = tensors.pop("metadata", None)
        save_file(tensors, str(folder / "a.safetensors"), metadata)
        return folder / "a.safetensors"

    return write_to


def _table(edit: Edit) -> Callable[[Path], Path]:
    def write_to(folder: Path) -> Path:
        import pyarrow as pa
        from pyarrow import parquet

        rows = parquet.read_table(FIXTURES / "miles/dashboard_columns/rollout_7.parquet").to_pylist()
        edit(rows)
        parquet.write_table(pa.Table.from_pylist(rows), folder / "a.parquet")
        return folder / "a.parquet"

    return write_to


def _cut(name: str, at: int) -> Callable[[Path], Path]:
    return _bytes(Path(name).name, lambda: (FIXTURES / name).read_bytes()[:at])


FILES: dict[str, tuple[Callable[[Path], Path], str]] = {
    "not there": (lambda folder: folder / "nothing.jsonl", "cannot be read: No such file or directory"),
    "empty": (_bytes("a.jsonl", b""), "empty; expected JSON"),
    "an empty list": (_bytes("a.jsonl", b"[]\n"), "holds no record"),
    "a folder without logs": (lambda folder: folder, "a folder without train_data_step*.jsonl or"),
    "some other file": (_bytes("a.png", b"\x89PNG\r\n\x1a\n12345"), "which is none of JSON, gzip, parquet"),
    "a pickle": (_bytes("a.pkl", pickle.dumps({"a": 1})), "a pickle, which can run any code, is not read"),
    "a torch file of objects": (_torch({"samples": [Path("x")]}), "To unpickle the rest could run any code"),
    "a torch file of a list": (_torch([1]), "a list is no dump of slime or miles"),
    "a torch file of nothing known": (_torch({"weights": 1}), "holds no samples; it has weights"),
    "a cut torch file": (_cut("slime/rollout_7.pt", 1000), "is no whole file"),
    "a cut gzip": (_bytes("a.jsonl.gz", b"\x1f\x8b\x08\x00"), "cannot be read to its end"),
    "a cut line": (_cut(NEMO, 2500), "the last line stops in the middle of a record"),
    "lists too deep": (_bytes("a.jsonl", b'{"a": NaN, "b": ' + b"[" * 100_000), "stops in the middle of a record"),
    "no JSON": (_bytes("a.jsonl", b"{'a': 1}\n" * 10), "not JSON"),
    "no JSON further down": (
        _bytes("a.jsonl", lambda: (FIXTURES / NEMO).read_bytes() + b"{'a': 1}\n"),
        "a.jsonl:4: not JSON",
    ),
    "a number on a line": (_bytes("a.jsonl", b"[5]\n"), "5 is no record; expected a JSON object"),
    "a split context": (
        _torch({"rollout_data": {"tokens": []}, "cp_size": 2}),
        "written with context parallelism over 2",
    ),
    "columns without tokens": (_torch({"rollout_data": {}, "cp_size": 1}), "rollout_data holds no list of tokens"),
    "a response past the tokens": (_sample(response_length=99), "response_length is 99; tokens has 12"),
    "a response of another length": (_sample(response_length=8), "rollout_log_probs has 9 entries; the sequence has 8"),
    "tokens of fractions": (_sample(tokens=torch.ones(12)), "tokens is float32 [12]; expected whole numbers"),
    "routes of a plane": (
        _sample(rollout_routed_experts=torch.zeros(11, 2).long()),
        "rollout_routed_experts is [11, 2]",
    ),
    "a sampler's side alone": (_sample(), "no log-probabilities of the trainer"),
    "a cut parquet": (_cut("moeparity/log.parquet", 4000), "not a whole parquet file"),
    "a miles row of another length": (_table(lambda rows: rows[0].update(total_length=5)), "do not fit 12 tokens"),
    "completions as text": (
        _table(lambda rows: rows.__setitem__(slice(None), [{"prompt": "q", "completion": "a"}])),
        "TRL's table of completions",
    ),
    "top ids without values": (
        _tensors(top_ids=torch.ones(3, 14, 2).long()),
        "top_logprobs is missing, and top_ids [3, 14, 2]; expected both, of one shape",
    ),
    "top ids of fractions": (
        _tensors(top_ids=torch.ones(3, 14, 2), top_logprobs=-torch.ones(3, 14, 2)),
        "top_ids is no block of whole numbers [B, T, K]",
    ),
    "a cut safetensors": (_cut("moeparity/log.safetensors", 1500), "not a whole safetensors file"),
    "an unknown tensor": (_tensors(logprob=torch.zeros(3, 14)), "unknown tensor 'logprob'"),
    "a tensor of another shape": (_tensors(logprobs=torch.zeros(3, 13)), "logprobs is [3, 13]; expected [3, 14]"),
    "ids of one dimension": (
        _tensors(input_ids=torch.zeros(3).long()),
        "input_ids is [3]; expected [sequences, tokens]",
    ),
    "attention with holes": (_tensors(attention_mask=torch.eye(14)[:3].roll(1, 1).long()), "is empty or holed"),
    "scored pads": (_tensors(loss_mask=torch.ones(3, 14).bool()), "loss_mask of row 0 scores padding"),
    "words for metadata": (_tensors(metadata={"ids": "x"}), "metadata 'ids' is not JSON"),
    "too few ids": (_tensors(metadata={"ids": '["a"]'}), "no JSON list of 3 words"),
    "routes of fractions": (_tensors(routed_experts=torch.zeros(3, 14, 2, 2)), "no block of whole numbers"),
    "an expert twice in a block": (_tensors(routed_experts=torch.ones(3, 14, 2, 2).long()), "sends a token to [1, 1]"),
}


def _open(*sampled: Path, **options: Any) -> None:
    list(logs.open(list(sampled), **options))


def _open_sampled(*sampled: Path) -> None:
    list(open_sampled(list(sampled)))


def _without_sampler(folder: Path) -> None:
    lines = map(json.loads, (FIXTURES / "moeparity/log.jsonl").read_text("utf-8").splitlines())
    rows = [{key: value for key, value in line.items() if key != "logprobs"} for line in lines]
    path = folder / "log.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), "utf-8")
    _open_sampled(path)


def _against(
    folder: Path,
    edit: Edit,
    *,
    sampled: Edit = lambda _: None,
    source: str = "moeparity/log.jsonl",
    tokenizer: Path | None = None,
) -> None:
    """Our own log as the sampler's and, edited, as the trainer's."""
    pair = []
    for name, change in (("sampler", sampled), ("trainer", edit)):
        lines = deepcopy(records(source))
        change(lines)
        pair.append(folder / f"{name}.jsonl")
        pair[-1].write_text("".join(json.dumps(line) + "\n" for line in lines))
    _open(pair[0], trainer=[pair[1]], tokenizer=tokenizer)


def _packed(folder: Path) -> None:
    path = folder / "trainer.jsonl.gz"
    path.write_bytes(gzip.compress((FIXTURES / "moeparity/log.jsonl").read_bytes()))
    _open(FIXTURES / "moeparity/log.jsonl", trainer=[path])


def _unfinished(folder: Path) -> None:
    path = folder / "token_exports" / "step_7" / "rank_0.jsonl"
    path.parent.mkdir(parents=True)
    path.write_bytes((FIXTURES / PRIME).read_bytes())
    _open(path)


def _without_pyarrow(folder: Path) -> None:
    with mock.patch.dict(sys.modules, {"pyarrow": None}):
        _open(FIXTURES / "moeparity/log.parquet")


def _large_document(folder: Path) -> None:
    path = folder / "a.json"
    path.write_text(json.dumps(records("sglang/generate.jsonl"), indent=1))
    with mock.patch.dict(paths.LIMITS, {"log that is one JSON document": 100}):
        _open(path)


def _blank_lines(folder: Path) -> None:
    path = folder / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b"\n" * 1_000_100, 1))
    _open(path)


def _long_line(folder: Path) -> None:
    path = folder / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"a": "' + b"x" * 5_000, 1))
    with mock.patch.dict(paths.LIMITS, {"line of a log": 1_000}):
        _open(path)


def _unpacked(folder: Path) -> None:
    path = folder / "a.jsonl.gz"
    path.write_bytes(gzip.compress((FIXTURES / "moeparity/log.jsonl").read_bytes()))
    with mock.patch.dict(paths.LIMITS, {"log once unpacked": 100}):
        _open(path)


def _packed_dump(folder: Path) -> None:
    path = folder / "a.pt"
    with zipfile.ZipFile(FIXTURES / "slime/train_7.pt") as stored, zipfile.ZipFile(path, "w", 8) as packed:
        for name in stored.namelist():
            packed.writestr(name, stored.read(name))
    _open(path)


def _run_lengths(folder: Path) -> None:
    with mock.patch.object(parquet_files, "_MOST_VALUES", 2):
        _open(FIXTURES / "moeparity/log.parquet")


def _cut_pages(folder: Path) -> None:
    content = bytearray((FIXTURES / "moeparity/log.parquet").read_bytes())
    content[4:1200] = bytes(1196)
    path = folder / "a.parquet"
    path.write_bytes(content)
    _open(path)


def _unmeasured_column(folder: Path) -> None:
    content = bytearray((FIXTURES / "moeparity/log.parquet").read_bytes())
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    # Field 3 of a column chunk, `meta_data`, becomes its field 4, which is no struct.
    content[content.index(b"\x26\x00\x1c", footer) + 2] = 0x2C
    path = folder / "a.parquet"
    path.write_bytes(content)
    _open(path)


def _renamed(folder: Path, old: bytes, new: bytes) -> None:
    path = folder / "a.parquet"
    path.write_bytes((FIXTURES / "moeparity/log.parquet").read_bytes().replace(old, new))
    _open(path)


def _columns_of_one_name(folder: Path) -> None:
    path = folder / "a.parquet"
    columns = [pa.array([1]), pa.array([2])]
    parquet.write_table(pa.Table.from_arrays(columns, names=["a", "a"]), path)
    _open(path)


def _other_histogram(folder: Path) -> None:
    """pyarrow's own `metadata.row_group(0).column(8)` of this file ends the process."""
    content = bytearray((FIXTURES / "moeparity/log.parquet").read_bytes())
    content[3325] = 45
    path = folder / "a.parquet"
    path.write_bytes(content)
    _open(path)


def _other_token(record: list[dict[str, Any]]) -> None:
    record[1]["input_ids"][5] += 1


def _in_vocabulary(lines: list[dict[str, Any]]) -> None:
    for line in lines:
        line["input_ids"] = [2 + token % 90 for token in line["input_ids"]]


def _other_first(lines: list[dict[str, Any]]) -> None:
    _in_vocabulary(lines)
    for line in lines:
        line["input_ids"][0] += 1


def _damaged(folder: Path) -> None:
    content = bytearray((FIXTURES / "slime/train_7.pt").read_bytes())
    with zipfile.ZipFile(FIXTURES / "slime/train_7.pt") as file:
        tensor = max(
            (each for each in file.namelist() if "/data/" in each), key=lambda each: file.getinfo(each).file_size
        )
        content[content.index(file.read(tensor)) + 1] ^= 1
    path = folder / "train_7.pt"
    path.write_bytes(content)
    _open(path)


def _headless(folder: Path) -> None:
    content = (FIXTURES / "slime/train_7.pt").read_bytes()
    path = folder / "train_7.pt"
    path.write_bytes(content[:40] + bytes(40) + content[80:])
    _open(path)


def _in_parts(folder: Path) -> None:
    """What the end of a ZIP64 archive says of its number of parts: zipfile raises as it looks whether it is one."""
    content = bytearray((FIXTURES / "slime/train_7.pt").read_bytes())
    locator = content.rindex(b"PK\x06\x07") if b"PK\x06\x07" in content else None
    if locator is None:
        end = content.rindex(b"PK\x05\x06")
        content[end:end] = b"PK\x06\x07" + bytes(4) + (0).to_bytes(8, "little") + (2).to_bytes(4, "little")
    else:
        content[locator + 16 : locator + 20] = (2).to_bytes(4, "little")
    path = folder / "train_7.pt"
    path.write_bytes(content)
    _open(path)


OTHERS: dict[str, tuple[Callable[[Path], None], str]] = {
    "no file": (lambda _: _open(), "no log given"),
    "no file of a sampler": (lambda _: _open_sampled(), "no log given"),
    "a log without the sampler's side": (_without_sampler, "no log-probabilities of the sampler. Give the sampler's"),
    "a damaged tensor": (_damaged, "is not as it was written: its checksum fails"),
    "an archive in parts": (_in_parts, "its directory is not as it was written"),
    "a damaged archive": (_headless, "its checksum fails"),
    "no marker": (_unfinished, "step_7 has no file STABLE"),
    "no pyarrow": (_without_pyarrow, "pip install 'moeparity[logs]'"),
    "a large document": (_large_document, "too large for one JSON document"),
    "a packed file of blank lines": (_blank_lines, "no log: a line of more than"),
    "a packed file of one line": (_long_line, "no log: a line of more than 1,000 bytes"),
    "a packed file that unpacks to much": (_unpacked, "or 100 bytes in all"),
    "a packed torch.save": (_packed_dump, "no file of torch.save: it is packed"),
    "a column of many values": (_run_lengths, "values in a column; at most 2 are read"),
    "broken pages": (_cut_pages, "cannot be read to its end"),
    "a column without its number of values": (_unmeasured_column, "does not say how many values its columns hold"),
    "a column whose name is no text": (
        lambda folder: _renamed(folder, b"prompt_tokens", b"p\xeeompt_tokens"),
        "not a whole parquet",
    ),
    "a text that is none": (
        lambda folder: _renamed(folder, b"maths", b"m\xeeths"),
        "cannot be read to its end: 'utf-8'",
    ),
    "two columns of one name": (_columns_of_one_name, "2 columns are called 'a'"),
    "a histogram of another size": (_other_histogram, "cannot be read to its end: Definition level histogram size"),
    "lines of a packed file": (_packed, "gunzip trainer.jsonl.gz"),
    "a file given twice": (lambda _: _open(*[FIXTURES / NEMO] * 2), "sequence 7/0 comes a second time. Is a file"),
    "one file as both sides": (
        lambda _: _open(FIXTURES / "moeparity/log.jsonl", trainer=[FIXTURES / "slime/../moeparity/log.jsonl"]),
        "given as the sampler's log and as the trainer's",
    ),
    "nothing but zeros": (
        lambda folder: _against(folder, _zeroed, sampled=_zeroed),
        "both sides' log-probabilities are 0 at all 22 scored tokens",
    ),
    "other tokens": (lambda folder: _against(folder, _other_token), "other tokens than in"),
    "fewer tokens": (
        lambda folder: _against(folder, lambda _: None, sampled=_shorter),
        "13 tokens against 14. Score the sampler's token ids",
    ),
    "other tokens that no tokenizer gives as text": (
        lambda folder: _against(folder, _other_token, tokenizer=tokenizer_file(folder)),
        "has no token",
    ),
    "other tokens and no tokenizer": (
        lambda folder: _against(folder, _other_token, tokenizer=folder),
        "there is no tokenizer.json",
    ),
    "other tokens before all that is scored": (
        lambda folder: _against(folder, _other_first, sampled=_in_vocabulary, tokenizer=tokenizer_file(folder)),
        "Token 0 of sequence s0 is the first that differs (other text): ",
    ),
    "a sequence that is not scored": (lambda folder: _against(folder, lambda each: each.pop()), "--join order"),
    "a sequence that is not sampled": (
        lambda folder: _against(folder, lambda _: None, sampled=lambda each: each.pop()),
        "1 of 3 sequences are not in the sampler's files",
    ),
    "an id twice in the trainer's": (
        lambda folder: _against(folder, lambda each: each[1].update(id="s0")),
        "sequence s0 comes a second time among the trainer's",
    ),
    "two files of the trainer's side": (
        lambda folder: _against(folder, lambda _: None, sampled=lambda each: [s.pop("logprobs") for s in each]),
        "no log-probabilities of the sampler",
    ),
    "one file shorter, in order": (
        lambda folder: _open(FIXTURES / NEMO, trainer=[_first(folder)], join="order"),
        "the trainer's files end before this sequence",
    ),
    "unknown where scored": (
        lambda folder: _against(folder, lambda each: each[0]["trainer_logprobs"].__setitem__(4, None)),
        "token 4 of sequence s0 is scored, but the trainer's log-probability there is missing",
    ),
}


def _zeroed(each: list[dict[str, Any]]) -> None:
    for record in each:
        record |= {key: [0.0] * len(record["input_ids"]) for key in ("logprobs", "trainer_logprobs")}


def _shorter(each: list[dict[str, Any]]) -> None:
    for key in ("input_ids", "mask", "logprobs", "trainer_logprobs", "versions"):
        each[1][key] = each[1][key][1:]


def _first(folder: Path) -> Path:
    path = folder / "trainer.jsonl"
    path.write_text((FIXTURES / NEMO).read_text().splitlines()[0] + "\n")
    return path
