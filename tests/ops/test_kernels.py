"""Every attribute value of the norm, rope, elementwise and eager attention kernels against plain torch, bit for bit.

Taken as given are torch's rsqrt, silu, softmax and mean; every rounding is written out.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from moeparity.ops.kernels.attention import attention, mla
from moeparity.ops.kernels.elementwise import add, clamp, embedding, sigmoid_gate, swiglu
from moeparity.ops.kernels.norm import rms_norm
from moeparity.ops.kernels.rope import inverse_frequencies, rope
from tests.ops.plain import BF16, DTYPES, FP32, SITES, assert_bits, plus, random, times


@pytest.mark.parametrize(("model", "normalized", "output"), SITES)
@pytest.mark.parametrize("eps", ["config", 0.25])
def test_rms_norm(model: torch.dtype, normalized: torch.dtype, output: torch.dtype, eps: str | float) -> None:
    x, weight = random(3, 5, 37, dtype=model), random(37, dtype=model, seed=1)
    added = 1e-6 if eps == "config" else float(eps)
    rstd = torch.rsqrt((x.float() * x.float()).mean(-1, keepdim=True) + added)
    at: dict[str, Any] = {"normalized": normalized, "output": output, "eps": eps}
    expected = times(times(x, rstd, FP32).to(normalized), weight, output)
    x_first = at | ({"association": "x_rstd_first"} if normalized == FP32 else {})
    assert_bits(rms_norm(x, w={"weight": weight}, p={"eps": 1e-6, "heads": None}, at=x_first), expected)
    if normalized == FP32:
        weight_first = rms_norm(
            x, w={"weight": weight}, p={"eps": 1e-6, "heads": None}, at=at | {"association": "weight_rstd_first"}
        )
        assert_bits(weight_first, times(x, times(rstd, weight, FP32), output))
        assert not torch.equal(weight_first, expected) or output != FP32


@pytest.mark.parametrize(("model", "products", "output"), SITES)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("partial", [False, True])
def test_rope(model: torch.dtype, products: torch.dtype, output: torch.dtype, interleaved: bool, partial: bool) -> None:
    half, width = 5, 14 if partial else 10
    q, k = random(2, 7, 3, width, dtype=model), random(2, 7, width, dtype=model, seed=1)
    angles = random(2, 7, half, dtype=FP32, seed=2)
    cos, sin = (torch.cat((f(angles), f(angles)), dim=-1).to(model) for f in (torch.cos, torch.sin))
    at = {"products": products, "output": output}
    p = {"interleaved": interleaved, "partial": partial}
    rotated = rope(q, k, cos, sin, w={}, p=p, at=at)
    for ours, x in zip(rotated, (q, k.unsqueeze(2)), strict=True):
        expected = x.transpose(1, 2).to(output).clone()
        for i in range(half):
            a, b = (x[..., 2 * i], x[..., 2 * i + 1]) if interleaved else (x[..., i], x[..., i + half])
            c, s = cos[..., i, None], sin[..., i, None]
            first = plus(times(a, c, products), times(-b, s, products), output)
            second = plus(times(b, c, products), times(a, s, products), output)
            expected[..., i], expected[..., i + half] = first.transpose(1, 2), second.transpose(1, 2)
        assert_bits(ours, expected)


@pytest.mark.parametrize(("model", "activation", "output"), SITES)
def test_swiglu(model: torch.dtype, activation: torch.dtype, output: torch.dtype) -> None:
    gate, up = random(3, 5, 37, dtype=model) * 4, random(3, 5, 37, dtype=model, seed=1)
    ours = swiglu(gate, up, w={}, p={}, at={"activation": activation, "output": output})
    assert_bits(ours, times(F.silu(gate.float()).to(activation), up, output))


@pytest.mark.parametrize(("model", "activation", "output"), SITES)
def test_sigmoid_gate(model: torch.dtype, activation: torch.dtype, output: torch.dtype) -> None:
    gate, x = random(3, 5, 1, dtype=model) * 4, random(3, 5, 37, dtype=model, seed=1)
    ours = sigmoid_gate(gate, x, w={}, p={}, at={"activation": activation, "output": output})
    assert_bits(ours, times(torch.sigmoid(gate.float()).to(activation), x, output))


@pytest.mark.parametrize(("model", "output"), list(itertools.product(DTYPES, DTYPES)))
def test_clamp(model: torch.dtype, output: torch.dtype) -> None:
    x, limit = random(3, 5, 37, dtype=model), 0.7
    edge = torch.tensor(limit).to(output)
    expected = [min(max(value, -edge.item()), edge.item()) for value in x.to(output).flatten().tolist()]
    ours = clamp(x, w={}, p={"limit": limit}, at={"output": output})
    assert_bits(ours, torch.tensor(expected, dtype=torch.float64).to(output).view_as(x))
    assert ours.abs().max() == edge


def test_heads_are_a_view_of_the_normalised_row() -> None:
    x, weight = random(2, 5, 36, dtype=BF16), random(36, dtype=BF16, seed=1)
    at: dict[str, Any] = {"normalized": BF16, "output": BF16, "eps": "config"}
    whole, heads = (rms_norm(x, w={"weight": weight}, p={"eps": 1e-6, "heads": n}, at=at) for n in (None, 3))
    assert_bits(heads, whole.view(2, 5, 3, 12))


def test_inverse_frequencies() -> None:
    """Against fp64 formulas, to fp32's precision: the bits are compared with transformers', in tests/hf."""
    plain = 10000.0 ** -(torch.arange(0, 16, 2).double() / 16)

    def ours(length: int, **rope: Any) -> Tensor:
        given = {"rope_theta": 10000.0, **rope}
        return inverse_frequencies(16, given, 32, FP32, torch.tensor(length))[0].double()

    def close(a: Tensor, b: Tensor) -> bool:
        return torch.allclose(a, b, rtol=1e-6, atol=0)

    assert close(ours(99, rope_type="default"), plain)
    assert close(ours(99, rope_type="linear", factor=3.0), plain / 3)
    assert close(ours(32, rope_type="dynamic", factor=2.0), plain)
    theta = 10000.0 * (2.0 * 99 / 32 - 1) ** (16 / 14)
    assert close(ours(99, rope_type="dynamic", factor=2.0), theta ** -(torch.arange(0, 16, 2).double() / 16))
    bands = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
    expected = []
    for frequency in plain.tolist():
        turns = 64 * frequency / (2 * math.pi)
        share = min(max((turns - 1.0) / 3.0, 0.0), 1.0)
        expected.append((1 - share) * frequency / 8 + share * frequency)
    assert close(ours(99, rope_type="llama3", factor=8.0, **bands), torch.tensor(expected).double())


@pytest.mark.parametrize(("left", "right", "output"), SITES)
def test_add(left: torch.dtype, right: torch.dtype, output: torch.dtype) -> None:
    a, b = random(3, 5, 37, dtype=left), random(3, 5, 37, dtype=right, seed=1)
    assert_bits(add(a, b, w={}, p={}, at={"output": output}), plus(a, b, output))


@pytest.mark.parametrize(("model", "output"), list(itertools.product(DTYPES, DTYPES)))
def test_embedding(model: torch.dtype, output: torch.dtype) -> None:
    table, tokens = random(11, 7, dtype=model), torch.tensor([[3, 0, 10], [3, 3, 1]])
    expected = torch.stack([torch.stack([table[i] for i in row]) for row in tokens.tolist()]).to(output)
    assert_bits(embedding(tokens, w={"weight": table}, p={}, at={"output": output}), expected)


ROPES = {
    "default": {"rope_type": "default"},
    "yarn": {"rope_type": "yarn", "factor": 8.0, "mscale_all_dim": 0.5},
}


def coarse(*shape: int, dtype: torch.dtype, seed: int) -> Tensor:
    """Small multiples of 1/4: sums of their products are exact in fp32, in whichever order."""
    return (torch.randint(-9, 10, shape, generator=torch.Generator().manual_seed(seed)) / 4).to(dtype)


def one_per_column(rows: int, columns: int, seed: int) -> Tensor:
    """A single power of two in every column: the sum over the rows is exact whatever it is multiplied with."""
    generator = torch.Generator().manual_seed(seed)
    at = torch.randint(0, rows, (1, columns), generator=generator)
    return torch.zeros(rows, columns).scatter(0, at, 2.0 ** torch.randint(-3, 4, (1, columns), generator=generator))


def matmul(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    exact = a.double() @ b.double()
    assert torch.equal(exact, exact.float().double())
    return exact.float().to(dtype)


def eager(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    at: dict[str, Any],
    seen: Callable[[int, int, int], bool] | None = None,
) -> Tensor:
    """One sequence and head at a time: q, k [B, H, T, D], v [B, H, T, V] -> [B, T, H * V].

    `seen` says of a sequence whether a query sees a key; all before it and itself where there is nothing else to say.
    """
    heads = []
    for i, (one_q, one_k, one_v) in enumerate(zip(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), strict=True)):
        scores = times(matmul(one_q, one_k.t(), at["scores"]), torch.tensor(scale), at["scores"])
        places, smallest = range(len(scores)), torch.tensor(torch.finfo(at["scores"]).min)
        for query, key in itertools.product(places, places):
            if key > query or (seen is not None and not seen(i // q.shape[1], query, key)):
                scores[query, key] = plus(scores[query, key], smallest, at["scores"])
        heads.append(matmul(F.softmax(scores.float(), dim=-1).to(at["probabilities"]), one_v, at["output"]))
    return torch.stack(heads).view(*q.shape[:3], -1).transpose(1, 2).flatten(2)


@pytest.mark.parametrize(("scores", "probabilities", "output"), SITES)
@pytest.mark.parametrize("model", DTYPES)
@pytest.mark.parametrize("groups", [1, 3])
def test_eager_attention(
    model: torch.dtype, scores: torch.dtype, probabilities: torch.dtype, output: torch.dtype, groups: int
) -> None:
    q, k = coarse(2, 6, 11, 12, dtype=model, seed=0), coarse(2, 6 // groups, 11, 12, dtype=model, seed=1)
    v = one_per_column(11, 2 * 6 // groups * 12, seed=2).view(11, 2, -1, 12).transpose(0, 1).to(model)
    at = {
        "implementation": "eager",
        "scores": scores,
        "probabilities": probabilities,
        "output": output,
        "kv_layout": "projected",
    }
    k_repeated, v_repeated = (x.repeat_interleave(groups, dim=1) for x in (k, v.transpose(1, 2)))
    mask = torch.ones(2, 11, dtype=torch.bool)
    ours = attention(q, k, v, mask, w={}, p={"window": None}, at=at)
    assert_bits(ours, eager(q, k_repeated, v_repeated, 12**-0.5, at))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [None, 1, 3, 11])
@pytest.mark.parametrize("lengths", [(11, 11), (11, 4), (1, 6)])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_and_window(dtype: torch.dtype, window: int | None, lengths: tuple[int, int], side: str) -> None:
    q, k = coarse(2, 2, 11, 12, dtype=dtype, seed=0), coarse(2, 2, 11, 12, dtype=dtype, seed=1)
    v = one_per_column(11, 2 * 2 * 12, seed=2).view(11, 2, -1, 12).transpose(0, 1).to(dtype)
    real = [range(11 - n, 11) if side == "left" else range(n) for n in lengths]
    mask = torch.tensor([[i in row for i in range(11)] for row in real])

    def seen(sequence: int, query: int, key: int) -> bool:
        return key in real[sequence] and (window is None or query - key < window)

    at: dict[str, Any] = {"implementation": "eager", "kv_layout": "projected"}
    at |= dict.fromkeys(("scores", "probabilities", "output"), dtype)
    ours = attention(q, k, v, mask, w={}, p={"window": window}, at=at)
    assert_bits(ours, eager(q, k, v.transpose(1, 2), 12**-0.5, at, seen))
    by_sdpa = attention(q, k, v, mask, w={}, p={"window": window}, at=at | {"implementation": "sdpa"})
    # Another order of the same sums, except in rows without a key: those are torch's own business.
    rows = torch.tensor([[any(seen(b, i, j) for j in range(i + 1)) for i in range(11)] for b in range(2)])
    assert torch.allclose(by_sdpa[rows].float(), ours[rows].float(), atol=0.05)


@pytest.mark.parametrize(("model", "expanded", "scores"), SITES)
@pytest.mark.parametrize("rope_type", ROPES)
def test_eager_mla(model: torch.dtype, expanded: torch.dtype, scores: torch.dtype, rope_type: str) -> None:
    """The latents are scaled unit vectors, so that token t's keys and values are column t of kv_b."""
    tokens, heads, nope, width, turned = 9, 3, 5, 7, 4
    q_nope = coarse(2, tokens, heads, nope, dtype=model, seed=0)
    q_rope = coarse(2, heads, tokens, turned, dtype=model, seed=1)
    k_rope = coarse(2, 1, tokens, turned, dtype=model, seed=2)
    latent = (torch.eye(tokens) * torch.tensor([1.0, 0.5])[:, None, None]).to(model)
    keys = coarse(heads, nope, tokens, dtype=FP32, seed=3) * (1 + 2**-5)  # more bits than bf16 holds
    values = one_per_column(tokens, heads * width, seed=4).t().view(heads, width, tokens)
    kv_b = torch.cat((keys, values), dim=1).flatten(0, 1)
    at = {"implementation": "eager", "kv_b": expanded, "scores": scores, "probabilities": model, "output": model}
    p = {"heads": heads, "value_dim": width, "rope": ROPES[rope_type]}
    mask = torch.ones(2, tokens, dtype=torch.bool)
    ours = mla(q_nope, q_rope, latent, k_rope, mask, w={"kv_b": kv_b}, p=p, at=at)

    by_head = kv_b.to(expanded).view(heads, nope + width, tokens).transpose(1, 2).float()
    both = torch.stack((by_head, by_head * 0.5))
    q = torch.cat((q_nope.transpose(1, 2), q_rope), dim=-1)
    k = torch.cat((both[..., :nope], k_rope.float().expand(-1, heads, -1, -1)), dim=-1)
    mscale = 1.0 if rope_type == "default" else 0.1 * 0.5 * math.log(8.0) + 1.0
    assert_bits(ours, eager(q, k, both[..., nope:], (nope + turned) ** -0.5 * mscale * mscale, at))
