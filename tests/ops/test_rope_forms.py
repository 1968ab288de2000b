"""Rotary embedding as transformers, vLLM and SGLang compute it, one number at a time; and what it does with layouts."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor
from transformers import DeepseekV2Config
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2RotaryEmbedding

from moeparity.engine.forward import forward
from moeparity.inputs.model import open_model
from moeparity.numerics.bits import same_bits
from moeparity.ops.attribute import RefusedError
from moeparity.ops.kernels.rope import inverse_frequencies, rope, rotary
from tests.ops.plain import BF16, FP16, FP32, assert_bits, random
from tests.ops.scalar import F32, ROUND, fma
from tests.verified import record

DTYPES = {"bf16": BF16, "fp16": FP16, "fp32": FP32}
FORMS: dict[str, dict[str, str]] = {
    "transformers": {"cache": "bf16", "products": "bf16", "contraction": "none"},
    "vllm": {"cache": "bf16", "products": "fp32", "contraction": "cos"},
    "vllm, contracted the other way": {"cache": "bf16", "products": "fp32", "contraction": "sin"},
    "sglang": {"cache": "fp32", "products": "fp32", "contraction": "cos"},
    "sglang, not contracted": {"cache": "fp32", "products": "fp32", "contraction": "none"},
}
"""dtype of cos and sin, that of the products, and what is contracted to an fma; the output is bf16."""
HALF = 12

Pair = tuple[F32, F32]


def turned(a: F32, b: F32, c: F32, s: F32, form: dict[str, str]) -> Pair:
    """(a cos - b sin, b cos + a sin), the output rounded to bf16."""
    store, each = ROUND["bf16"], ROUND[form["products"]]

    def two(x: F32, y: F32) -> F32:
        """x cos + y sin."""
        if form["contraction"] == "cos":
            return store(fma(x, c, y * s))
        if form["contraction"] == "sin":
            return store(fma(y, s, x * c))
        return store(each(x * c) + each(y * s))

    return two(a, -b), two(b, a)


def by_hand(x: Tensor, cos: Tensor, sin: Tensor, form: dict[str, str], at: Callable[[int], tuple[int, int]]) -> Tensor:
    """x [B, T, H, D] -> pairs [B, H, T, D / 2, 2]; `at` says where in x the numbers of a pair are."""
    numbers_in, c, s = (t.float().numpy() for t in (x, cos, sin))
    b, t, h, d = x.shape
    out = np.zeros((b, h, t, d // 2, 2), np.float32)
    for i, j, k, p in np.ndindex(b, t, h, d // 2):
        first, second = (numbers_in[i, j, k, place] for place in at(p))
        out[i, k, j, p] = turned(first, second, F32(c[i, j, p]), F32(s[i, j, p]), form)
    return torch.from_numpy(out).to(BF16)


def table(form: dict[str, str], theta: float = 1e4) -> tuple[Tensor, Tensor]:
    p: dict[str, Any] = {"dim": 2 * HALF, "rope": {"rope_type": "default", "rope_theta": theta}, "max_positions": 64}
    positions = torch.arange(7).expand(2, -1) * 5
    return rotary(positions, w={}, p=p, at={"output": DTYPES[form["cache"]]})


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("layout", ["neox", "interleaved halves", "interleaved pairs"])
def test_forms(name: str, layout: str) -> None:
    form = FORMS[name]
    q, k = random(2, 7, 3, 2 * HALF, dtype=BF16), random(2, 7, 2, 2 * HALF, dtype=BF16, seed=1)
    cos, sin = table(form)
    assert cos.dtype == DTYPES[form["cache"]]
    interleaved = layout != "neox"
    at = {
        "products": DTYPES[form["products"]],
        "output": BF16,
        "layout": "pairs" if layout.endswith("pairs") else "halves",
    }
    at |= {"contraction": form["contraction"]} if form["products"] == "fp32" else {}
    rotated = rope(q, k, cos, sin, w={}, p={"interleaved": interleaved, "partial": False}, at=at)
    for ours, x in zip(rotated, (q, k), strict=True):
        places = (lambda p: (2 * p, 2 * p + 1)) if interleaved else (lambda p: (p, p + HALF))
        pairs = by_hand(x, cos, sin, form, places)
        expected = pairs.flatten(-2) if layout.endswith("pairs") else pairs.transpose(-2, -1).flatten(-2)
        assert_bits(ours, expected)


def test_the_forms_differ() -> None:
    q = random(2, 7, 3, 2 * HALF, dtype=BF16)

    def run(form: dict[str, str], output: torch.dtype) -> Tensor:
        at: dict[str, Any] = {"products": DTYPES[form["products"]], "output": output, "layout": "halves"}
        at |= {"contraction": form["contraction"]} if form["products"] == "fp32" else {}
        return rope(q, q, *table(form), w={}, p={"interleaved": False, "partial": False}, at=at)[0]

    by_form = {name: run(form, FP32) for name, form in FORMS.items()}
    for first, second in itertools.combinations(FORMS, 2):
        # Products of two bf16 numbers are exact in fp32: with a bf16 cache a contraction changes nothing.
        exact = (
            FORMS[first]["cache"] == FORMS[second]["cache"] and FORMS[first]["products"] == FORMS[second]["products"]
        )
        assert torch.equal(by_form[first], by_form[second]) == (exact and FORMS[first]["cache"] == "bf16"), (
            first,
            second,
        )
    share = {
        pair: (run(FORMS[pair[0]], BF16) != run(FORMS[pair[1]], BF16)).double().mean().item()
        for pair in (("transformers", "vllm"), ("transformers", "sglang"), ("vllm", "sglang"))
    }
    assert all(0.1 < value < 0.5 for value in share.values()), share


def test_pairs_in_place_are_the_same_values_elsewhere() -> None:
    q, k = random(2, 7, 3, 2 * HALF, dtype=FP32), random(2, 7, 3, 2 * HALF, dtype=FP32, seed=1)
    cos, sin = table(FORMS["sglang"])
    at: dict[str, Any] = {"products": FP32, "output": FP32, "contraction": "none"}
    p = {"interleaved": True, "partial": False}
    halves, pairs = (rope(q, k, cos, sin, w={}, p=p, at=at | {"layout": layout}) for layout in ("halves", "pairs"))
    for a, b in zip(halves, pairs, strict=True):
        assert_bits(torch.cat((b[..., 0::2], b[..., 1::2]), dim=-1), a)


def test_yarn_mscale_is_multiplied_before_the_cast() -> None:
    rope_parameters = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "original_max_position_embeddings": 32}
    p: dict[str, Any] = {"dim": 2 * HALF, "rope": rope_parameters, "max_positions": 256}
    positions = torch.arange(7)[None] * 31
    cos, _ = rotary(positions, w={}, p=p, at={"output": FP32})
    stored, _ = rotary(positions, w={}, p=p, at={"output": BF16})
    assert_bits(stored, cos.to(BF16))
    mscale = 0.1 * float(np.log(8.0)) + 1.0
    after = ((cos / mscale).to(BF16) * mscale).to(BF16)
    assert not torch.equal(stored, after)
    assert torch.equal(cos[0, 0], torch.full((2 * HALF,), mscale)), "cos(0) times mscale"


@pytest.mark.parametrize("products", [BF16, FP32])
def test_q_and_k_of_unequal_dtypes(products: torch.dtype) -> None:
    """A fused norm and rotary embedding hands over q before its rounding, and k as it is stored."""
    q, k = random(2, 7, 3, 2 * HALF, dtype=FP32), random(2, 7, 2, 2 * HALF, dtype=BF16, seed=1)
    cos, sin = table(FORMS["vllm"])
    at: dict[str, Any] = {"products": products, "output": BF16, "layout": "halves"}
    at |= {"contraction": "none"} if products == FP32 else {}
    form = {"products": "fp32" if products == FP32 else "bf16", "contraction": "none"}
    rotated = rope(q, k, cos, sin, w={}, p={"interleaved": False, "partial": False}, at=at)
    for ours, x in zip(rotated, (q, k), strict=True):
        pairs = by_hand(x, cos, sin, form, lambda p: (p, p + HALF))
        assert_bits(ours, pairs.transpose(-2, -1).flatten(-2))
    assert not torch.equal(
        rotated[0], rope(q.to(BF16), k, cos, sin, w={}, p={"interleaved": False, "partial": False}, at=at)[0]
    )


def test_a_fused_norm_hands_queries_over_unrounded(qwen3_moe: Path) -> None:
    """The edge from the norm to the rotary embedding: q is not rounded between them; k is, as both are without it."""
    model = open_model(qwen3_moe, device="cpu", residency="resident")
    ids, at = torch.arange(14).view(2, 7), "layers[0].attention"
    save = [*(f"{at}.{name}" for name in ("q_proj", "q_norm", "k_norm", "rope")), "rotary"]
    edge = {f"{at}.q_norm:output->rope": "fp32"}
    plain, fused = (forward(model, ids, settings=settings, save=save) for settings in ({}, edge))
    x = plain["layers.0.attention.q_proj"].float()
    weight = load_file(qwen3_moe / "model.safetensors")["model.layers.0.self_attn.q_norm.weight"]
    rows = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
    unrounded = rows.to(BF16).float() * weight.float()
    assert_bits(unrounded.to(BF16), plain["layers.0.attention.q_norm"])
    cos, sin = (plain[f"rotary.{part}"].float().unsqueeze(1) for part in ("cos", "sin"))
    q = unrounded.transpose(1, 2)
    half = q.shape[-1] // 2
    turned = torch.cat((-q[..., half:], q[..., :half]), dim=-1)
    by_hand = ((q * cos).to(BF16).float() + (turned * sin).to(BF16).float()).to(BF16)
    assert_bits(fused["layers.0.attention.rope.q"], by_hand)
    assert not torch.equal(plain["layers.0.attention.rope.q"], by_hand)
    assert_bits(fused["layers.0.attention.rope.k"], plain["layers.0.attention.rope.k"])


@pytest.mark.parametrize("base", [1.0, 0.0, -3.0, float("nan")])
@pytest.mark.parametrize("kind", ["default", "yarn"])
def test_a_base_that_nothing_rotates_with_is_refused(kind: str, base: float) -> None:
    """A search for a number tries any; a program of the user's must not end by it."""
    parameters = {"rope_type": kind, "rope_theta": base, "factor": 4.0, "original_max_position_embeddings": 16}
    with pytest.raises(RefusedError, match="Expected a number above 1"):
        inverse_frequencies(8, parameters, 64, torch.float32, torch.tensor(4))


def test_sines_of_a_complex_number() -> None:
    """DeepSeek-V2's own table; torch.cos and torch.sin are near, and have other bits."""
    live = DeepseekV2RotaryEmbedding(DeepseekV2Config(qk_rope_head_dim=64))
    positions = torch.arange(200).unsqueeze(0)
    turned = live(torch.zeros(1, 200, 64), positions)
    p = {"dim": 64, "rope": {"rope_type": "default", "rope_theta": 10000.0}, "max_positions": 2048}
    cos, sin = rotary(positions, w={}, p=p, at={"output": FP32, "sines": "polar"})
    assert same_bits(cos, torch.cat((turned.real, turned.real), -1))
    assert same_bits(sin, torch.cat((turned.imag, turned.imag), -1))
    by_torch, _ = rotary(positions, w={}, p=p, at={"output": FP32, "sines": "torch"})
    assert torch.allclose(cos, by_torch, atol=1e-6)
    record("rotary", {"output": "fp32", "sines": "polar"}, f"transformers {transformers.__version__}")
