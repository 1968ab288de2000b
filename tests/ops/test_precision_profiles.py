"""The shipped profile for TF32: its GEMMs' operands are rounded, and nothing beside them."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file

from moeparity.engine.forward import forward
from moeparity.inputs.model import open_model
from tests.ops.plain import assert_bits
from tests.ops.test_head import by_fractions


def test_tf32_rounds_the_operands_of_a_projection(qwen3_moe: Path) -> None:
    """Weights in bf16 fit; activations do not. The GEMM on operands rounded by hand is torch's own."""
    model = open_model(qwen3_moe, device="cpu", residency="resident")
    ids, save = torch.arange(14).view(2, 7), ["norm", "lm_head"]
    plain, rounded = (
        forward(model, ids, profile=profile, dtype="fp32", save=save) for profile in ("hf-eager", "hf-tf32")
    )
    assert not torch.equal(plain["logits"], rounded["logits"])
    assert torch.allclose(plain["logits"], rounded["logits"], atol=0.1)
    x = rounded["norm"]
    by_hand = torch.tensor([by_fractions(value) for value in x.flatten().tolist()]).view_as(x)
    head = forward(model, ids, profile="hf-tf32", dtype="fp32", save=save, settings={"lm_head:tf32": "no"})
    assert_bits(head["norm"], x)
    tensors = load_file(qwen3_moe / "model.safetensors")
    table = tensors.get("lm_head.weight", tensors["model.embed_tokens.weight"]).float()
    assert_bits(rounded["logits"], torch.nn.functional.linear(by_hand, table))
    assert_bits(head["logits"], torch.nn.functional.linear(x, table))
