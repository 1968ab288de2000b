"""A pack without its mask is one long sequence, also where no op sees its rows."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from moeparity.engine.forward import forward
from moeparity.numerics.bits import same_bits

PROFILES = ("hf-eager", "vllm-batch-invariant", "sglang-deterministic", "torchtitan-batch-invariant")


def logits(checkpoint: Path, profile: str, ids: torch.Tensor, mask: str) -> torch.Tensor:
    schedule = {"pack": {"length": ids.numel(), "mask": mask, "positions": "running"}}
    return forward(checkpoint, ids, profile=profile, dtype="bf16", schedule=schedule, device="cpu")["logits"]


@pytest.mark.parametrize("profile", PROFILES)
def test_each_token_sees_the_sequences_before_its_own(qwen3_moe: Path, profile: str) -> None:
    ids = torch.randint(0, 256, (3, 5), generator=torch.Generator().manual_seed(3))
    row = forward(qwen3_moe, ids.view(1, 15), profile=profile, dtype="bf16", device="cpu")["logits"]
    unmasked = logits(qwen3_moe, profile, ids, "none")
    assert same_bits(unmasked.view(1, 15, -1), row)
    masked = logits(qwen3_moe, profile, ids, "block")
    assert same_bits(unmasked[0], masked[0])
    assert not same_bits(unmasked[1], masked[1])
