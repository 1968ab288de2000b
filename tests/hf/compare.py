"""What the comparisons with transformers share: the models opened, random tokens, padding, and bit equality."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Literal

import torch
import transformers

from moeparity.inputs.model import Model, open_model
from moeparity.numerics.bits import same_bits
from tests.hf.reference import Truth

LIVE = f"transformers {transformers.__version__}"
PROFILES = ("hf-eager", "hf-default")
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


@lru_cache(maxsize=1)
def opened(folder: Path) -> Model:
    return open_model(folder, device="cpu", residency="resident")


def tokens(vocab: int, shape: tuple[int, int]) -> torch.Tensor:
    return torch.randint(0, vocab, shape, generator=torch.Generator().manual_seed(sum(shape)))


def padded(lengths: tuple[int, ...], width: int, side: Literal["left", "right"]) -> torch.Tensor:
    """An attention mask [sequences, width] int64 with that many real tokens in each row, the padding on that side."""
    columns = torch.arange(width).expand(len(lengths), -1)
    real = torch.tensor(lengths)[:, None]
    return (columns >= width - real if side == "left" else columns < real).long()


def assert_is(model: Model, ours: dict[str, torch.Tensor], truth: Truth) -> None:
    logits, routes = truth
    sparse = [node.layer for node in model.graph.nodes if node.op.name == "router"]
    assert len(sparse) == len(routes)
    for layer, (experts, weights) in zip(sparse, routes, strict=True):
        assert torch.equal(ours[f"layers.{layer}.router.ids"], experts), f"routes of layer {layer}"
        assert same_bits(ours[f"layers.{layer}.router.weights"], weights), f"routing weights of layer {layer}"
    assert same_bits(ours["logits"], logits)
