"""Under batch-invariant profiles every schedule gives the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from moeparity.engine.forward import forward
from moeparity.numerics.bits import same_bits
from tests.opened import opened

PROFILES = ("vllm-batch-invariant", "vllm-batch-invariant-eager", "sglang-deterministic", "torchtitan-batch-invariant")
SCHEDULES: dict[str, dict[str, Any]] = {
    "decode together": {"decode": {"from": 5, "batch": "all"}},
    "decode one by one": {"decode": {"from": 5, "batch": "single"}},
    "vllm in chunks": {"rule": "vllm-v1", "prefill": {"chunk": 8}, "decode": {"from": 5}, "buckets": [1, 2, 4, 8]},
    "sglang": {"rule": "sglang", "decode": {"from": 5}},
    "packs": {"pack": {"length": 40, "mask": "block", "positions": "reset"}},
    "drafts": {"rule": "vllm-v1", "decode": {"from": 5}, "verify": 3},
}


@pytest.mark.parametrize("profile", PROFILES)
def test_no_schedule_changes_a_bit(profile: str, qwen3_moe: Path) -> None:
    model = opened(qwen3_moe)
    ids = torch.randint(0, model.vocab_size, (3, 17), generator=torch.Generator().manual_seed(0))
    mask = torch.ones(3, 17, dtype=torch.bool)
    mask[1, 13:] = mask[2, 15:] = False
    whole = forward(model, ids, attention_mask=mask, profile=profile, dtype="bf16")
    for name, schedule in SCHEDULES.items():
        steps = forward(model, ids, attention_mask=mask, profile=profile, dtype="bf16", schedule=schedule)
        assert same_bits(whole["logits"][mask], steps["logits"][mask]), name
