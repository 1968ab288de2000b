"""`moeparity tokens` and `moeparity sample` as a user runs them, in a process of its own once each."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from moeparity.inputs.tokens import read_tokens
from tests.command import alone, inside

LINES = '{"text": "Hi\\n", "labels": "text", "logprobs": [null, -0.5, -1]}\n{"text": "A", "labels": "code"}\n'


@pytest.fixture
def folder(qwen3_moe: Path, tmp_path: Path) -> Path:
    (tmp_path / "t.jsonl").write_text(LINES, "utf-8")
    (tmp_path / "p.jsonl").write_text('{"text": "Hi"}\n{"text": "A"}\n', "utf-8")
    for name, tokens in (
        ("shown", "{file: t.jsonl, tokenizer: bytes, padding: left, sampled_from: candidate}"),
        ("sampled", "{file: p.jsonl, tokenizer: bytes, sample: {from: reference, new_tokens: 3, seed: 5}}"),
    ):
        (tmp_path / f"{name}.yaml").write_text(
            f"kind: recipe\ncheckpoint: {qwen3_moe}\ntokens: {tokens}\nreference: {{profile: hf-eager}}\n"
            "candidate: {profile: hf-default}\ngate: {metric: k3, below: 1e-3}\n",
            "utf-8",
        )
    return tmp_path


def test_ids_are_shown_beside_their_text(folder: Path) -> None:
    process = alone("tokens", "shown.yaml", cwd=folder)
    assert process.returncode == 0, process.stderr
    words = [line.split() for line in process.stdout.splitlines() if line.strip()]
    assert " ".join(words[0]) == "2 sequences of up to 3 tokens, 2 scored, 2 pads"
    assert words[1:] == [
        ["sequence", "0"],
        ["at", "id", "text", "scored", "label", "log", "P"],
        ["0", "72", "H", "text"],
        ["1", "105", "i", "yes", "text", "-0.5"],
        ["2", "10", "\\n", "yes", "text", "-1"],
        ["sequence", "1"],
        ["at", "id", "text", "scored", "label", "log", "P"],
        ["2", "65", "A", "code"],
    ]


def test_prompts_are_not_scored(folder: Path) -> None:
    process = inside("tokens", "sampled.yaml", cwd=folder)
    assert process.returncode == 0, process.stderr
    assert process.stdout.startswith("2 sequences of up to 2 tokens, 0 scored, 1 pads")


def test_a_file_is_shown_with_a_tokenizer_named_on_the_command_line(folder: Path) -> None:
    process = inside("tokens", "t.jsonl", "--tokenizer", "bytes", "--sequences", "1", "--length", "2", cwd=folder)
    assert process.returncode == 0, process.stderr
    assert "sequence 1" not in process.stdout
    assert "105" in process.stdout
    assert "\\n" not in process.stdout


def test_sampled_tokens_are_written_for_another_run(folder: Path) -> None:
    process = alone("tokens", "sampled.yaml", "--sample", "--out", "out.safetensors", "--device", "cpu", cwd=folder)
    assert process.returncode == 0, process.stderr
    assert "2 x 5 tokens, 6 generated, 1 pads" in process.stdout
    assert "next: tokens: {file: out.safetensors, sampled_from: reference}" in process.stdout
    tokens = read_tokens(folder / "out.safetensors")
    assert tokens.input_ids[0, :2].tolist() == [72, 105]
    assert tokens.loss_mask.long().tolist() == [[0, 0, 1, 1, 1], [0, 1, 1, 1, 0]]


def test_forward_takes_json_lines(folder: Path, qwen3_moe: Path) -> None:
    arguments = ("--tokens", "t.jsonl", "--tokenizer", "bytes", "--out", "o.safetensors", "--device", "cpu")
    process = inside("forward", qwen3_moe, *arguments, cwd=folder)
    assert process.returncode == 0, process.stderr
    logits = load_file(folder / "o.safetensors")["logits"]
    assert logits.shape[:2] == (2, 3)
    assert bool(torch.isfinite(logits).all())
