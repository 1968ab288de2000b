"""Kinds of inputs: good files, which of them is changed, and the command lines that read it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from moeparity.documents.checked import shipped
from tests.errors.base import BASE, TOKENS, WEIGHTS
from tests.hostile import library
from tests.hostile.contract import console

FIXTURES = Path(__file__).parents[1] / "logs" / "fixtures"
KERNEL = Path(__file__).parents[1] / "probe" / "kernel_files" / "norm_strided.yaml"
LAUNCHES = Path(__file__).parents[1] / "profiles" / "launch"
LAUNCH_FILES = (
    *("vllm/serve.sh", "vllm/undecided.sh", "vllm/docker.sh", "vllm/compose.yaml", "vllm/deployment.yaml"),
    *("vllm/policy.service", "vllm/offline.py", "slime/run.sh", "nemo-rl/override.yaml"),
    *("trl/server-and-trainer.sh", "prime-rl/rl.toml"),
)
"""One for every way of writing."""
RECIPE = """
kind: recipe
checkpoint: .
tokens: {file: %s, sampled_from: candidate}
reference: {profile: %s, micro_batch: 2}
candidate: {profile: %s, micro_batch: 2}
gate: {metric: k3, below: 1.0e-4}
"""
FULL_RECIPE = """
kind: recipe
checkpoint: .
tokens: {file: tokens.safetensors, sampled_from: candidate}
reference: {profile: hf-eager, dtype: fp32, micro_batch: 2}
candidate:
  profile: hf-default
  dtype: bf16
  micro_batch: 1
  set: {"layers[*].moe.combine:accumulate": fp32}
gate: {metric: k3, below: 1.0e-4}
by: rule
split: 1
floor: true
oracle: true
replay: true
envelope: 2
attribute: true
swap: ["layers[*].moe"]
expect: {verdict: pass, culprits: none}
"""
TOKENIZER = {
    "version": "1.0",
    "added_tokens": [],
    "pre_tokenizer": {"type": "Whitespace"},
    "model": {
        "type": "WordPiece",
        "vocab": {"one": 0, "two": 1, "[UNK]": 2},
        "unk_token": "[UNK]",
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100,
    },
}
BISECT = ("bisect", "recipe.yaml", "--device", "cpu", "--json", "report.json")


@dataclass(frozen=True, slots=True)
class Subject:
    """What makes the good files in a folder; the name of the file to change; command lines that read it, and whose."""

    make: Callable[[Path], None]
    file: str
    commands: tuple[tuple[str, ...], ...]
    act: Callable[[], object] = console


def _base(folder: Path, recipe: str = RECIPE % (TOKENS, "hf-eager", "hf-eager")) -> None:
    shutil.copytree(BASE, folder, dirs_exist_ok=True)
    (folder / "recipe.yaml").write_text(recipe, "utf-8")


def _profile(folder: Path) -> None:
    _base(folder, RECIPE % (TOKENS, "hf-eager", "./profile.yaml"))
    (folder / "profile.yaml").write_bytes(shipped("profiles")["hf-default"].read_bytes())


def _lines(folder: Path) -> None:
    _base(folder, RECIPE % ("tokens.jsonl", "hf-eager", "hf-eager"))
    rows = [
        {"input_ids": [1, 2, 3, 4, 5], "mask": [0, 0, 1, 1, 1], "logprobs": [None, -1.0, -2.0, -3.5, -0.5]},
        {"input_ids": [7, 9, 8], "logprobs": [None, -1.0, -2.0]},
    ]
    (folder / "tokens.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


def _schedule(folder: Path) -> None:
    _base(folder)
    recipe = (RECIPE % (TOKENS, "hf-eager", "hf-eager")).replace(
        "candidate: {profile: hf-eager, micro_batch: 2}",
        "candidate: {profile: hf-eager, schedule: {file: batches.jsonl}}",
    )
    (folder / "recipe.yaml").write_text(recipe, "utf-8")
    steps: list[dict[str, Any]] = [
        {"spans": [[0, 0, 3], [1, 0, 2]], "shape": "flat", "phase": "prefill", "isolated": True},
        {"spans": [[0, 3, 4], [1, 2, 4]], "phase": "verify", "scored": [0, 1], "verified": [1], "padding": 2},
        {"spans": [[0, 4, 5], [1, 4, 5]], "phase": "decode"},
    ]
    (folder / "batches.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps), "utf-8")


def _graph(folder: Path) -> None:
    _base(folder)
    (folder / "graph.yaml").write_bytes(shipped("models")["qwen3_moe"].read_bytes())


def _kernel(folder: Path) -> None:
    _base(folder)
    text = KERNEL.read_text("utf-8")
    source = KERNEL.parent / yaml.safe_load(text)["ptx"]
    (folder / "kernel.yaml").write_text(text.replace("../../ptx/programs/", ""), "utf-8")
    shutil.copy(source, folder)


def _ptx(folder: Path) -> None:
    (folder / "kernels.ptx").write_text(library.kernels(), "utf-8")


def _tokenizer(folder: Path) -> None:
    _base(folder, (RECIPE % ("t.jsonl", "hf-eager", "hf-eager")).replace("t.jsonl", "t.jsonl, tokenizer: checkpoint"))
    (folder / "tokenizer.json").write_text(json.dumps(TOKENIZER), "utf-8")
    (folder / "t.jsonl").write_text('{"text": "one two one"}\n{"text": "two two"}\n', "utf-8")


def _copied(source: Path, name: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        shutil.copy(source, folder / name)

    return make


def _beside(source: Path) -> Callable[[Path], None]:
    """A launch file with all that stands beside it, which it may name."""

    def make(folder: Path) -> None:
        shutil.copytree(source.parent, folder, dirs_exist_ok=True)

    return make


def _routes(folder: Path) -> None:
    rows = [{"routed_experts": [[[0, 1], [2, 3]], [[1, 2], [3, 0]]], "input_ids": [5, 6]} for _ in range(3)]
    for name in ("a.jsonl", "b.jsonl"):
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


def _full(folder: Path) -> None:
    _base(folder, FULL_RECIPE)


def _log_check(folder: Path) -> None:
    shutil.copy(FIXTURES / "moeparity" / "log.jsonl", folder / "log.jsonl")
    (folder / "check.yaml").write_text(
        "kind: log\nfiles: [log.jsonl]\njoin: id\npartial: false\ngate: {metric: k3, below: 1.0e-3}\n"
        "expect: {verdict: fail, causes: none, metrics: {k3: {below: 0.1}, k1: {above: -1}}}\n",
        "utf-8",
    )


SHOW = ("show", "plan", "recipe.yaml")
LOG_FILES = {
    "moeparity": ("moeparity/log.jsonl", None),
    "moeparity-tensors": ("moeparity/log.safetensors", None),
    "parquet": ("moeparity/log.parquet", None),
    "nemo-rl": ("nemo-rl/train_data_step7.jsonl", None),
    "slime": ("slime/rollout_7.pt", "slime/train_7.pt"),
    "sglang": ("sglang/generate.jsonl", "sglang/scored.jsonl"),
    "vllm": ("vllm/outputs.jsonl", "vllm/scored.jsonl"),
    "openai": ("openai/completions.jsonl", "openai/scored.jsonl"),
    "chat": ("openai/chat.jsonl", "openai/scored.jsonl"),
}


def _log(name: str) -> Subject:
    first, second = LOG_FILES[name]
    file = Path(first).name

    def make(folder: Path) -> None:
        shutil.copy(FIXTURES / first, folder / file)
        if second is not None:
            shutil.copy(FIXTURES / second, folder / Path(second).name)

    trainer = ("--trainer", Path(second).name) if second else ()
    return Subject(make, file, (("metrics", file, *trainer, "--set", "all", "--json", "report.json"),))


SUBJECTS: dict[str, Subject] = {
    "recipe": Subject(_full, "recipe.yaml", (SHOW, BISECT, ("check", "recipe.yaml", "--junit", "report.xml"))),
    "profile": Subject(_profile, "profile.yaml", (SHOW, BISECT)),
    "graph": Subject(_graph, "graph.yaml", (("expand", "graph.yaml"),), library.expand_graph),
    "config.json": Subject(_base, "config.json", (BISECT, ("init", ".", "--out", "new.yaml"))),
    "safetensors": Subject(_base, WEIGHTS, (BISECT,)),
    "tokens": Subject(_base, TOKENS, (BISECT, ("tokens", TOKENS))),
    "token lines": Subject(_lines, "tokens.jsonl", (BISECT, ("tokens", "tokens.jsonl"))),
    "tokenizer": Subject(_tokenizer, "tokenizer.json", (("tokens", "recipe.yaml"), BISECT)),
    "schedule": Subject(
        _schedule,
        "batches.jsonl",
        (
            BISECT,
            (
                *("forward", ".", "--tokens", TOKENS, "--device=cpu"),
                "--schedule=batches.jsonl",
                "--out=out.safetensors",
            ),
        ),
    ),
    "ptx": Subject(_ptx, "kernels.ptx", (("ptx", "kernels.ptx"),), library.run_kernels),
    "kernel": Subject(
        _kernel,
        "kernel.yaml",
        (("kernel", "certify", "kernel.yaml", "--plan=.", "--against=layers[0].moe.norm", "--m=1"),),
    ),
    "routes": Subject(_routes, "a.jsonl", (("diff", "a.jsonl", "b.jsonl"),)),
    "log check": Subject(_log_check, "check.yaml", (("check", "check.yaml"),)),
    **{f"log {name}": _log(name) for name in LOG_FILES},
    **{
        f"launch {name}": Subject(_copied(LAUNCHES / name, name), name, (("show", "launch", name),))
        for name in ("nemo-rl.yaml", "sglang.json", "sglang.sh", "verl.yaml", "vllm.sh")
    },
    **{
        f"launch {name}": Subject(
            _beside(LAUNCHES / "files" / name), Path(name).name, (("show", "launch", Path(name).name),)
        )
        for name in LAUNCH_FILES
    },
}
