"""On a model of real widths batch-invariant profiles give the same bits whatever is computed together."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from moeparity.engine.forward import forward
from moeparity.numerics.bits import same_bits
from tests.checkpoint_factory import WIDE_VOCAB
from tests.opened import opened

PROFILES = (
    "vllm-batch-invariant",
    "vllm-batch-invariant-eager",
    "sglang-deterministic",
    "sglang-rl-on-policy",
    "torchtitan-batch-invariant",
)
UNROUNDED = {"lm_head:output": "fp32"}
"""Other bits of a sum show where it is not rounded to 16 bits."""


def logits(
    wide: Path, profile: str, tokens: int, micro_batch: int, settings: Mapping[str, str | float]
) -> torch.Tensor:
    ids = torch.randint(0, WIDE_VOCAB, (8, tokens), generator=torch.Generator().manual_seed(5))
    model = opened(wide)
    return forward(model, ids, profile=profile, dtype="bf16", micro_batch=micro_batch, settings=settings)["logits"]


@pytest.mark.parametrize("profile", PROFILES)
def test_every_micro_batch_gives_the_same_bits(wide: Path, profile: str) -> None:
    eight = logits(wide, profile, 24, 8, UNROUNDED)
    for size in (1, 3):
        assert same_bits(logits(wide, profile, 24, size, UNROUNDED), eight), size


def test_with_torchs_own_gemm_they_would_not(wide: Path) -> None:
    single, eight = (logits(wide, PROFILES[0], 1, size, UNROUNDED) for size in (1, 8))
    assert same_bits(single, eight)
    settings = UNROUNDED | {"lm_head:rows": "all"}
    assert not same_bits(logits(wide, PROFILES[0], 1, 1, settings), logits(wide, PROFILES[0], 1, 8, settings))
