"""`moeparity forward` under a schedule, as a command: the bits of transformers with a cache that fills."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from moeparity.numerics.bits import same_bits
from tests.command import alone
from tests.hf.compare import opened, tokens
from tests.hf.reference import load
from tests.hf.test_schedules import truth_by_step

LENGTH, SEQUENCES, FIRST = 12, 3, 7


@pytest.mark.parametrize("by", ["--decode-from", "--schedule"])
def test_a_forward_by_steps_is_that_of_a_filled_cache(qwen3_moe: Path, tmp_path: Path, by: str) -> None:
    model = opened(qwen3_moe)
    ids = tokens(model.vocab_size, (SEQUENCES, LENGTH))
    save_file({"input_ids": ids}, tmp_path / "tokens.safetensors")
    if by == "--decode-from":
        edges, value = (FIRST, *range(FIRST + 1, LENGTH + 1)), str(FIRST)
    else:
        edges, value = (4, 9, 10, LENGTH), "batches.jsonl"
        spans = [[[i, a, b] for i in range(SEQUENCES)] for a, b in zip((0, *edges[:-1]), edges, strict=True)]
        batches = [json.dumps({"spans": batch, "shape": "dense"}) for batch in spans]
        (tmp_path / value).write_text("\n".join(batches), "utf-8")
    options = ("--profile", "hf-default", "--dtype", "fp32", "--device", "cpu", "--out", "out.safetensors")
    done = alone("forward", qwen3_moe, "--tokens", "tokens.safetensors", *options, by, value, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"out.safetensors: 7 tensors, logits [{SEQUENCES}, {LENGTH}, {model.vocab_size}]\n"
    ours = load_file(tmp_path / "out.safetensors")["logits"]
    truth = truth_by_step(load(model.folder, "hf-default", torch.float32), ids, edges, last_row=by == "--decode-from")
    assert same_bits(truth, ours[:, -truth.shape[1] :])
