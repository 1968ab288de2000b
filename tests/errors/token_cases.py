"""Bad token files of JSON lines and bad `tokens:` of recipes, each for the base checkpoint; made when they are run."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import torch
from safetensors.torch import load_file, save_file

from moeparity.errors import Where
from moeparity.inputs.tokens.tokenizer import open_tokenizer
from tests.errors import request_cases, score_cases
from tests.errors.base import BASE, TOKENS, WEIGHTS
from tests.errors.base import CONFIG as BASE_CONFIG

SAMPLED = "sampled_from: candidate"
SAMPLE = "sample: {from: candidate, new_tokens: 2}"
BYTES = f"tokenizer: bytes, {SAMPLED}"
OWN = f"tokenizer: checkpoint, {SAMPLED}"
IDS = '"input_ids": [1, 2, 3]'
TEXT = '{"text": "Hello"}'
LOGGED = '"logprobs": [null, -1, -1]'
GOOD = f"{{{IDS}}}\n"
ROUTED_ONCE = f'{{{IDS}, "routed_experts": [[[0, 1]], null, null]}}'
ROUTED_TWICE = f'{{{IDS}, "routed_experts": [[[0, 1], [2, 3]], null, null]}}'

LINES: dict[str, tuple[str, str]] = {
    **score_cases.LINES,
    **request_cases.LINES,
    "jsonl-empty": ("\n\n", SAMPLED),
    "jsonl-not-json": (GOOD + '{"input_ids": [1, 2,]}', SAMPLED),
    "jsonl-a-list": ("[1, 2, 3]", SAMPLED),
    "jsonl-nested-too-deeply": ('{"input_ids": ' + "[" * 100_000, SAMPLED),
    "jsonl-unknown-key": (f'{{{IDS}, "logprob": [null, -1, -1]}}', SAMPLED),
    "jsonl-repeated-key": (f"{{{IDS}, {IDS}}}", SAMPLED),
    "jsonl-text-and-ids": (f'{{{IDS}, "text": "abc"}}', SAMPLED),
    "jsonl-neither-text-nor-ids": ('{"labels": "text"}', SAMPLED),
    "jsonl-ids-of-words": ('{"input_ids": ["1", "2"]}', SAMPLED),
    "jsonl-ids-empty": ('{"input_ids": []}', SAMPLED),
    "jsonl-ids-above-the-vocabulary": ('{"input_ids": [1, 32]}', SAMPLED),
    "jsonl-text-without-tokenizer": (TEXT, SAMPLED),
    "jsonl-text-empty": ('{"text": ""}', OWN),
    "jsonl-text-half-a-pair": ('{"text": "\\ud83d"}', OWN),
    "jsonl-text-of-no-token": ('{"text": " "}', OWN),
    "jsonl-mask-too-short": (f'{{{IDS}, "mask": [0, 1]}}', SAMPLED),
    "jsonl-mask-of-text": ('{"text": "a b", "mask": [0, 1, 1]}', OWN),
    "jsonl-mask-no-list": (f'{{{IDS}, "mask": 1}}', SAMPLED),
    "jsonl-mask-of-other-values": (f'{{{IDS}, "mask": [0, 1, 2]}}', SAMPLED),
    "jsonl-mask-keeps-nothing": (f'{{{IDS}, "mask": [1, 0, 0]}}', SAMPLED),
    "jsonl-one-token": ('{"input_ids": [1]}', SAMPLED),
    "jsonl-labels-a-number": (f'{{{IDS}, "labels": [1, 2, 3]}}', SAMPLED),
    "jsonl-labels-in-some-lines": (f'{{{IDS}, "labels": "text"}}\n{GOOD}', SAMPLED),
    "jsonl-logprobs-with-ids": (f'{{{IDS}, "logprobs": [null, [-1.5, 2, "b"], -1]}}', SAMPLED),
    "jsonl-logprobs-are-probabilities": (f'{{{IDS}, "logprobs": [null, 0.5, 0.9]}}', SAMPLED),
    "jsonl-routes-flat": (f'{{{IDS}, "routed_experts": [[0, 1], [0, 1], null]}}', SAMPLED),
    "jsonl-routes-ragged": (f'{{{IDS}, "routed_experts": [[[0, 1], [0]], null, null]}}', SAMPLED),
    "jsonl-routes-repeated": (f'{{{IDS}, "routed_experts": [[[0, 1], [2, 2]], null, null]}}', SAMPLED),
    "jsonl-routes-one-row-short": (f'{{{IDS}, "routed_experts": [[[0, 1], [2, 3]], [[0, 1], [2, 3]]]}}', SAMPLED),
    "jsonl-routes-of-unlike-lines": (f"{ROUTED_TWICE}\n{ROUTED_ONCE}", SAMPLED),
    "jsonl-routes-of-too-few-layers": (ROUTED_ONCE, SAMPLED),
    "jsonl-routes-to-an-absent-expert": (f'{{{IDS}, "routed_experts": [[[0, 1], [2, 4]], null, null]}}', SAMPLED),
    "jsonl-pads-without-their-token": (f'{{{IDS}, "pads": {{"before": 1, "behind": 0}}}}', SAMPLED),
    "jsonl-pads-of-unlike-widths": (f'{{{IDS}, "pads": {{"before": 1, "behind": 0, "id": 0}}}}\n{GOOD}', SAMPLED),
    "jsonl-versions-of-words": (f'{{{IDS}, "versions": [-1, "a", "a"]}}', SAMPLED),
    "jsonl-versions-of-two-checkpoints": (f'{{{IDS}, "versions": [-1, 3, 4]}}', SAMPLED),
    "jsonl-bytes-in-a-small-vocabulary": (TEXT, BYTES),
    "jsonl-tokenizer-unknown": (TEXT, f"tokenizer: byte, {SAMPLED}"),
    "jsonl-tokenizer-file-missing": (TEXT, f"tokenizer: ./tokeniser.json, {SAMPLED}"),
    "jsonl-tokenizer-without-the-word": (TEXT, f"tokenizer: bad/one.json, {SAMPLED}"),
    "jsonl-tokenizer-a-folder": (TEXT, f"tokenizer: bad/folder.json, {SAMPLED}"),
    "jsonl-tokenizer-no-tokenizer": (TEXT, f"tokenizer: bad/tokenizer.json, {SAMPLED}"),
    "jsonl-pad-token-outside-the-vocabulary": (GOOD, SAMPLED),
    "jsonl-sample-of-infinite-logits": (GOOD, SAMPLE),
    "recipe-synthetic-without-a-scale": (GOOD, SAMPLED),
    "jsonl-sample-beside-records": (f'{{{IDS}, "logprobs": [null, -1, -2]}}', SAMPLE),
}

TENSORS: dict[str, tuple[dict[str, torch.Tensor], dict[str, str] | None]] = {
    **request_cases.TENSORS,
    "tokens-labels-of-wrong-shape": ({"labels": torch.zeros(2, dtype=torch.int64)}, None),
    "tokens-labels-without-their-names": ({"labels": torch.ones(2, 4, dtype=torch.int64)}, {"label_names": '["a"]'}),
    "tokens-logprobs-of-whole-numbers": ({"logprobs": torch.zeros(2, 4, dtype=torch.int64)}, None),
    "tokens-logprobs-above-0": ({"logprobs": torch.full((2, 4), 0.5)}, None),
    "tokens-routes-flat": ({"routed_experts": torch.zeros(2, 4, 2, dtype=torch.int64)}, None),
    "tokens-routes-repeated": ({"routed_experts": torch.zeros(2, 4, 2, 2, dtype=torch.int64)}, None),
}

CONFIG: dict[str, dict[str, object]] = {
    "jsonl-pad-token-outside-the-vocabulary": {"pad_token_id": 32},
    "recipe-synthetic-without-a-scale": {"initializer_range": "0.02"},
}
"""Fields of config.json that make the defect."""

RECIPE_END = {"recipe-synthetic-without-a-scale": "weights: synthetic(0)\n"}

CALLS: dict[str, Callable[[], object]] = {
    "python-drafts-beside-requests": request_cases.drafted,
    "python-tokenizer-package-missing": lambda: _without_tokenizers(Path("recipe.yaml")),
}

COMMAND_LINES: dict[str, tuple[str, ...]] = {
    "cli-tokens-checkpoint-tokenizer-of-none": ("tokens", "{tmp}/t.jsonl", "--tokenizer", "checkpoint"),
    "cli-sample-nothing-to-sample": (
        *("tokens", "base/recipe.yaml", "--sample", "--out", "{tmp}/out.safetensors"),
        *("--device", "cpu"),
    ),
    "cli-tokens-of-a-recipe-and-a-log": ("tokens", "base/recipe.yaml", "--sample", "--from-log", "--out", "{tmp}/out"),
    "cli-tokens-sampled-to-nowhere": ("tokens", "base/recipe.yaml", "--sample"),
    "cli-tokens-written-of-nothing": ("tokens", "{tmp}/t.jsonl", "--out", "{tmp}/out.jsonl"),
    "cli-tokens-format-of-a-token-file": ("tokens", "{tmp}/t.jsonl", "--format", "vllm"),
    "cli-init-trainer-without-one": (
        *("init", "base", "--out", "{tmp}/launched.yaml", "--server", "../profiles/launch/vllm.sh"),
        *("--trainer", "../profiles/launch/vllm.sh"),
    ),
    "cli-engines-stages-that-are-not-listed": ("show", "launch", "{tmp}/stages.sh"),
    "cli-engines-groups-that-do-not-divide": ("show", "launch", "{tmp}/groups.sh"),
    "cli-engines-replicas-of-groups": ("show", "launch", "{tmp}/replicas.sh"),
    "cli-init-over-a-file": ("init", "base", "--out", "{tmp}/t.jsonl"),
    "cli-init-adapter-beside-no-weights": (
        *("init", "beside/without-weights", "--adapter", "../../checkpoints/quickstart-lora"),
        *("--out", "{tmp}/starter.yaml"),
    ),
    "cli-tokens-two-files-to-print": ("tokens", "{tmp}/t.jsonl", "base/tokens.safetensors"),
    "cli-tokens-of-a-response-alone": ("tokens", "{tmp}/response.jsonl", "--from-log", "--out", "{tmp}/out.jsonl"),
    "cli-tokens-of-the-trainer-alone": ("tokens", "{tmp}/trainer.jsonl", "--from-log", "--out", "{tmp}/out.jsonl"),
    "cli-tokens-of-routes-of-unlike-sequences": (
        "tokens",
        "{tmp}/routes.jsonl",
        "--from-log",
        "--out",
        "{tmp}/out.jsonl",
    ),
    "jsonl-a-folder": ("tokens", "{tmp}/folder.jsonl"),
    "jsonl-not-utf8": ("tokens", "{tmp}/latin.jsonl"),
}


LAUNCHED = {
    "stages": "VLLM_PP_LAYER_PARTITION=11,13 vllm serve m --pipeline-parallel-size 3",
    "groups": "python -m sglang.launch_server --model-path m --tp 8 --dp-size 3 --enable-dp-attention",
    "replicas": "python -m sglang.launch_server --model-path m --tp 8 --dp-size 2 --attn-dp-size 4",
}
"""What engines refuse to start with."""


def prepare(tmp: Path) -> None:
    """The files the command lines name."""
    (tmp / "t.jsonl").write_text(TEXT, "utf-8")
    for name, line in LAUNCHED.items():
        (tmp / f"{name}.sh").write_text(f"{line}\n", "utf-8")
    (tmp / "folder.jsonl").mkdir()
    (tmp / "response.jsonl").write_text(
        f'{{"id": "a", {IDS}, "mask": [0, 1, 1], {LOGGED}, "prompt_tokens": 0}}\n', "utf-8"
    )
    (tmp / "trainer.jsonl").write_text(f'{{"id": "a", {IDS}, "trainer_{LOGGED[1:]}}}\n', "utf-8")
    routed = (f'{{"id": "{name}", {LOGGED}, {line[1:]}' for name, line in (("a", ROUTED_ONCE), ("b", ROUTED_TWICE)))
    (tmp / "routes.jsonl").write_text("\n".join(routed), "utf-8")
    (tmp / "latin.jsonl").write_bytes(b'{"text": "\xfc"}\n')


def recipe(name: str, tmp: Path) -> Path:
    """The recipe that meets a defect of LINES or TENSORS, with its files beside it."""
    if name in LINES:
        lines, rest = LINES[name]
        (tmp / "tokens.jsonl").write_text(lines, "utf-8")
        file = "tokens.jsonl"
    else:
        tensors, metadata = TENSORS[name]
        save_file({"input_ids": torch.arange(8).view(2, 4), **tensors}, tmp / TOKENS, metadata)
        file, rest = TOKENS, SAMPLED
    (tmp / "bad" / "folder.json").mkdir(parents=True)
    (tmp / "bad" / "tokenizer.json").write_text("{}", "utf-8")
    model = {"type": "WordLevel", "vocab": {"b": 0}, "unk_token": "[UNK]"}
    fields = {"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"}, "model": model}
    (tmp / "bad" / "one.json").write_text(json.dumps(fields), "utf-8")
    text = (BASE / "recipe.yaml").read_text("utf-8").replace("checkpoint: .", f"checkpoint: {_checkpoint(tmp)}")
    _spoil(name, tmp / "checkpoint")
    text = text + RECIPE_END.get(name, "")
    text = text.replace("{file: tokens.safetensors, sampled_from: candidate}", f"{{file: {file}, {rest}}}")
    (tmp / "recipe.yaml").write_text(text, "utf-8")
    return tmp / "recipe.yaml"


def _without_tokenizers(recipe: Path) -> object:
    with patch.dict(sys.modules, {"tokenizers": None}):
        return open_tokenizer("checkpoint", Where(recipe, 3), BASE)


def _spoil(name: str, folder: Path) -> None:
    """The defects that are the checkpoint's."""
    if name in CONFIG:
        (folder / "config.json").unlink()
        (folder / "config.json").write_text(json.dumps({**BASE_CONFIG, **CONFIG[name]}, indent=2), "utf-8")
    if name == "jsonl-sample-of-infinite-logits":
        (folder / WEIGHTS).unlink()
        huge = torch.full((16,), 3e38, dtype=torch.bfloat16)
        save_file({**load_file(BASE / WEIGHTS), "model.norm.weight": huge}, folder / WEIGHTS)


def _checkpoint(tmp: Path) -> Path:
    """The base beside a tokenizer.json of two words."""
    folder = tmp / "checkpoint"
    folder.mkdir()
    for path in BASE.iterdir():
        (folder / path.name).symlink_to(path)
    model = {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "a"}
    fields = {"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"}, "model": model}
    (folder / "tokenizer.json").write_text(json.dumps(fields), "utf-8")
    return folder
