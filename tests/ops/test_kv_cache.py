"""What a key/value cache stores in 8 bits: torch's casts, and an evaluation by scalars in exact arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import torch

from moeparity.numerics.bits import int_view, same_bits
from moeparity.numerics.quantised import to_fp8
from moeparity.ops.kernels.attention import attention
from moeparity.ops.kernels.kv_cache import kv_cache
from moeparity.ops.kernels.mla import mla

Tensor = torch.Tensor

FP8 = {"fp8_e4m3": (torch.float8_e4m3fn, 4, 7), "fp8_e5m2": (torch.float8_e5m2, 5, 15)}
"""Dtype, bits of the exponent, its bias."""
AT: dict[str, Any] = {
    "stored": torch.float8_e4m3fn,
    "scale": "static",
    "k_scale": 1.0,
    "v_scale": 1.0,
    "quotient": torch.float32,
    "overflow": "saturates",
    "dequantized": torch.bfloat16,
}
ALL_BF16 = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)


@cache
def numbers(name: str) -> tuple[list[Fraction], list[Fraction]]:
    """The numbers from 0 on that 8 bits hold, ascending by their codes, and the middles between neighbours."""
    _, exponent_bits, bias = FP8[name]
    mantissa_bits = 7 - exponent_bits
    magnitudes: list[Fraction] = []
    for code in range(1 << 7):
        exponent, mantissa = code >> mantissa_bits, code & ((1 << mantissa_bits) - 1)
        whole = (exponent == (1 << exponent_bits) - 1) and (name == "fp8_e5m2" or mantissa == (1 << mantissa_bits) - 1)
        if whole:  # no numbers: infinity and NaN, or NaN alone
            break
        significand = Fraction(mantissa, 1 << mantissa_bits) + (exponent > 0)
        magnitudes.append(significand * Fraction(2) ** (max(exponent, 1) - bias))
    middles = [(a + b) / 2 for a, b in pairwise(magnitudes)]
    # Above the largest, half a step of its own further.
    return magnitudes, [*middles, magnitudes[-1] + (magnitudes[-1] - magnitudes[-2]) / 2]


def code_of(x: float, name: str, *, saturates: bool) -> int:
    """The 8 bits of a number: nearest, ties to an even code."""
    magnitudes, middles = numbers(name)
    sign = 0x80 if math.copysign(1.0, x) < 0 else 0
    if math.isnan(x):
        return sign | 0x7F
    exact = None if math.isinf(x) else abs(Fraction(x))
    low, high = 0, len(middles)
    while exact is not None and low < high:
        middle = (low + high) // 2
        above = exact > middles[middle] or (exact == middles[middle] and middle % 2 == 1)
        low, high = (middle + 1, high) if above else (low, middle)
    if exact is None or low == len(magnitudes):
        return sign | (len(magnitudes) - 1 if saturates or name == "fp8_e4m3" else 0x7C)
    return sign | low


@pytest.mark.parametrize("name", FP8)
@pytest.mark.parametrize("saturates", [True, False])
def test_every_bf16_goes_to_the_nearest_of_8_bits(name: str, saturates: bool) -> None:
    dtype = FP8[name][0]
    ours = to_fp8(ALL_BF16, dtype, saturates=saturates).view(torch.uint8)
    nan = ALL_BF16.isnan()
    expected = torch.tensor([code_of(x, name, saturates=saturates) for x in ALL_BF16.tolist()], dtype=torch.uint8)
    assert torch.equal(ours[~nan], expected[~nan])
    assert to_fp8(ALL_BF16[nan], dtype, saturates=saturates).float().isnan().all()
    by_torch = ALL_BF16.to(dtype).view(torch.uint8)
    finite = ALL_BF16.float().abs() <= torch.finfo(dtype).max
    assert torch.equal(ours[finite], by_torch[finite])
    if name == "fp8_e4m3" or not saturates:
        assert torch.equal(ours[~nan], by_torch[~nan])


@pytest.mark.parametrize("name", FP8)
def test_fp32_is_rounded_once(name: str) -> None:
    """Numbers beside the middles, which bf16 or fp16 in between would move onto them."""
    dtype, _, middles = FP8[name][0], *numbers(name)
    beside = torch.tensor([float(m) for m in middles[:-1]])
    x = torch.cat([torch.nextafter(beside, torch.tensor(side)) for side in (0.0, math.inf)] + [beside])
    ours = to_fp8(x, dtype, saturates=True).view(torch.uint8)
    assert ours.tolist() == [code_of(value, name, saturates=True) for value in x.tolist()]
    assert torch.equal(ours, x.to(dtype).view(torch.uint8))


def heads(seed: int, *shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator) * torch.exp2(torch.randint(-14, 10, shape, generator=generator).float())
    return x.to(dtype)


def by_scalars(x: float, scale: Tensor, name: str, quotient: torch.dtype, dequantized: torch.dtype) -> Tensor:
    """One number stored and read: each operation of two fp32 numbers rounded by itself."""
    divided = (torch.tensor(x) / scale).to(quotient).float().item()
    bits = torch.tensor(code_of(divided, name, saturates=True), dtype=torch.uint8).view(FP8[name][0])
    return (bits.float() * scale).to(dequantized)


@pytest.mark.parametrize("name", FP8)
@pytest.mark.parametrize("scale", ["static", "tensor", "head"])
@pytest.mark.parametrize("quotient", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dequantized", [torch.float32, torch.bfloat16])
def test_what_is_read_is_what_scalars_give(
    name: str, scale: str, quotient: torch.dtype, dequantized: torch.dtype
) -> None:
    k, v = heads(1, 2, 3, 5, 4), heads(2, 2, 5, 3, 4)
    k[:, 2], v[:, :, 2] = 0, 0
    at = AT | {"stored": FP8[name][0], "scale": scale, "k_scale": 0.7, "v_scale": 0.013}
    ours = kv_cache(k, v, w={}, p={}, at=at | {"quotient": quotient, "dequantized": dequantized})
    largest = torch.tensor(torch.finfo(FP8[name][0]).max)
    for x, out, static_scale in ((k, ours[0], 0.7), (v.transpose(1, 2), ours[1], 0.013)):
        for head in range(3):
            group = x[:, head] if scale == "head" else x
            factor = torch.tensor(static_scale) if scale == "static" else group.float().abs().max() / largest
            factor = torch.tensor(1.0) if factor == 0 else factor
            expected = [by_scalars(a, factor, name, quotient, dequantized) for a in x[:, head].flatten().tolist()]
            assert same_bits(out[:, head].flatten(), torch.stack(expected))


def test_what_is_not_rounded_is_the_same_memory() -> None:
    k, v, latent = heads(1, 2, 3, 5, 4), heads(2, 2, 5, 3, 4), heads(3, 2, 5, 6)
    at = {"stored": "unrounded"}
    stored_k, stored_v = kv_cache(k, v, w={}, p={}, at=at)
    assert stored_k is k
    assert (stored_v.data_ptr(), stored_v.stride()) == (v.data_ptr(), v.transpose(1, 2).stride())
    _, stored_latent = kv_cache(k[:, :1], latent, w={}, p={}, at=at)
    assert (stored_latent.shape, stored_latent.data_ptr()) == ((2, 1, 5, 6), latent.data_ptr())


@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_16_bits_are_a_rounding_like_any_other(name: str) -> None:
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}[name]
    k, v = heads(1, 2, 3, 5, 4, dtype=torch.float32), heads(2, 2, 5, 3, 4, dtype=torch.float32)
    stored_k, stored_v = kv_cache(k, v, w={}, p={}, at={"stored": dtype})
    assert same_bits(stored_k, k.to(dtype))
    assert same_bits(stored_v, v.transpose(1, 2).to(dtype))


def test_own_keys_as_computed_stand_in_place_of_the_last() -> None:
    """Of 7 tokens of which 2 are a step's own, and of all 7."""
    q, k, v = heads(4, 2, 4, 7, 8) / 64, heads(5, 2, 2, 7, 8) / 64, heads(6, 2, 7, 2, 8)
    stored_k, stored_v = kv_cache(k, v, w={}, p={}, at=AT)
    eager = {"implementation": "eager", "softmax": "native", "tf32": "no", "kv_layout": "projected", "tensor": 1}
    at = eager | dict.fromkeys(("scores", "probabilities", "output"), torch.bfloat16) | {"blocks": 0}
    mask = torch.ones(2, 7, dtype=torch.bool)
    how: dict[str, Any] = {"w": {}, "p": {"window": None}, "at": at}
    for length in (2, 7):
        queries = q[:, :, 7 - length :]
        mixed_k = torch.cat((stored_k[:, :, : 7 - length], k[:, :, 7 - length :]), 2)
        mixed_v = torch.cat((stored_v[:, :, : 7 - length], v.transpose(1, 2)[:, :, 7 - length :]), 2)
        expected = attention(queries, mixed_k, mixed_v, mask, **how)
        ours = attention(queries, stored_k, stored_v, mask, k[:, :, 7 - length :], v[:, 7 - length :], **how)
        assert same_bits(ours, expected)
        assert not torch.equal(int_view(ours), int_view(attention(queries, stored_k, stored_v, mask, **how)))


@pytest.mark.parametrize("projection", ["context", "absorbed"])
def test_own_latents_as_computed_stand_in_place_of_the_last(projection: str) -> None:
    latent, k_rope = heads(7, 2, 7, 6) / 64, heads(8, 2, 1, 7, 4) / 64
    q_nope, q_rope, kv_b = heads(9, 2, 3, 5, 4) / 64, heads(10, 2, 5, 3, 4) / 64, heads(11, 5 * 8, 6) / 64
    stored_rope, stored = kv_cache(k_rope, latent, w={}, p={}, at=AT)
    sites = ("kv_b", "q_latent", "o_latent", "scores", "probabilities", "output")
    at = {"implementation": "eager", "softmax": "native", "tf32": "no", "tensor": 1, "blocks": 0}
    at |= dict.fromkeys(sites, torch.bfloat16) | {"projection": projection}
    how: dict[str, Any] = {"w": {"kv_b": kv_b}, "at": at, "p": {"value_dim": 4, "rope": {"rope_type": "default"}}}
    mask, earlier = torch.ones(2, 7, dtype=torch.bool), 4
    ours = mla(q_nope, q_rope, stored, stored_rope, mask, None, latent[:, earlier:], k_rope[:, :, earlier:], **how)
    mixed = torch.cat((stored[:, :, :earlier], latent[:, None, earlier:]), 2)
    mixed_rope = torch.cat((stored_rope[:, :, :earlier], k_rope[:, :, earlier:]), 2)
    assert same_bits(ours, mla(q_nope, q_rope, mixed, mixed_rope, mask, **how))
    assert not torch.equal(int_view(ours), int_view(mla(q_nope, q_rope, stored, stored_rope, mask, **how)))
