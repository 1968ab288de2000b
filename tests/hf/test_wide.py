"""A model of real widths, whose GEMMs depend on how many rows they have, equals transformers bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from moeparity.engine.forward import forward
from tests.checkpoint_factory import WIDE_VOCAB
from tests.hf.compare import PROFILES, assert_is, opened, tokens
from tests.hf.reference import Truth, load, reference
from tests.hf.test_bit_equality import size

SHAPES = ((1, 1), (1, 5), (3, 7), (4, 128))

WideTruth = dict[tuple[str, tuple[int, int]], Truth]
"""By profile and shape."""


@pytest.fixture(scope="module")
def wide_truth(wide: Path) -> WideTruth:
    """What transformers gives for the wide model; its weights are dropped again before ours are loaded."""
    keys = [(profile, shape) for profile in PROFILES for shape in SHAPES]
    truth = {(p, s): reference(wide, p, torch.bfloat16, tokens(WIDE_VOCAB, s)) for p, s in keys}
    load.cache_clear()
    return truth


@pytest.mark.parametrize("shape", SHAPES, ids=size)
@pytest.mark.parametrize("profile", PROFILES)
def test_wide_model(wide: Path, wide_truth: WideTruth, profile: str, shape: tuple[int, int]) -> None:
    model = opened(wide)
    ours = forward(model, tokens(WIDE_VOCAB, shape), profile=profile, dtype="bf16")
    assert_is(model, ours, wide_truth[profile, shape])
