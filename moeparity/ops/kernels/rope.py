"""Kernels of `rotary` and `rope`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from moeparity.numerics.rounding import add, product, rounded


def rotary(
    positions: torch.Tensor, *, w: Mapping[str, torch.Tensor], p: Mapping[str, Any], at: Mapping[str, Any]
) -> tuple[torch.Tensor, torch.Tensor]:
    """positions [B, T] int64 -> cos, sin [B, T, dim], computed in fp32."""
    inverse, scaling = inverse_frequencies(p["dim"], p["rope"], p["max_positions"])
    angles = positions[..., None].float() * inverse.to(positions.device)
    angles = torch.cat((angles, angles), dim=-1)
    return rounded(angles.cos() * scaling, at["output"]), rounded(angles.sin() * scaling, at["output"])


def inverse_frequencies(dim: int, rope: Mapping[str, Any], max_positions: int) -> tuple[torch.Tensor, float]:
    """fp32 inverse frequencies [dim / 2], always computed on the CPU, and the factor on cos and sin."""
    frequencies = rope["rope_theta"] ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    if rope["rope_type"] == "default":
        return 1.0 / frequencies, 1.0
    trained = rope["original_max_position_embeddings"]
    factor = rope.get("factor") or max_positions / trained
    low, high = _ramp_bounds(dim, rope, trained)
    ramp = torch.clamp((torch.arange(dim // 2, dtype=torch.float32) - low) / (high - low), 0, 1)
    keep = 1 - ramp
    return 1.0 / (factor * frequencies) * (1 - keep) + 1.0 / frequencies * keep, _yarn_factor(rope, factor)


def _ramp_bounds(dim: int, rope: Mapping[str, Any], trained: int) -> tuple[float, float]:
    """Between which dimensions yarn passes from extrapolated to interpolated frequencies."""

    def dimension(rotations: float) -> float:
        return (dim * math.log(trained / (rotations * 2 * math.pi))) / (2 * math.log(rope["rope_theta"]))

    low, high = dimension(rope.get("beta_fast") or 32), dimension(rope.get("beta_slow") or 1)
    if rope.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    # The same guard as transformers: a ramp of no width would divide by zero.
    return low, high + 0.001 if low == high else high


def yarn_mscale(factor: float, mscale: float = 1.0) -> float:
    """yarn's magnitude correction for a context grown by `factor`."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def _yarn_factor(rope: Mapping[str, Any], factor: float) -> float:
    if rope.get("attention_factor") is not None:
        return float(rope["attention_factor"])
    mscale, mscale_all = rope.get("mscale"), rope.get("mscale_all_dim")
    if mscale and mscale_all:
        return yarn_mscale(factor, mscale) / yarn_mscale(factor, mscale_all)
    return yarn_mscale(factor)


def rope(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    *,
    w: Mapping[str, torch.Tensor],
    p: Mapping[str, Any],
    at: Mapping[str, Any],
) -> tuple[torch.Tensor, torch.Tensor]:
    """q [B, T, H, dim], k [B, T, G, dim] (or [B, T, dim]: one shared head) -> [B, H, T, dim], [B, G, T, dim]."""
    rotate = _rotate_pairs if p["interleaved"] else _rotate_halves
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    q_rot, k_rot = (rotate(_by_head(x), cos, sin, products=at["products"], output=at["output"]) for x in (q, k))
    return q_rot, k_rot


def _by_head(x: torch.Tensor) -> torch.Tensor:
    """[B, T, H, D] -> a [B, H, T, D] view; [B, T, D] -> [B, 1, T, D]."""
    return x.unsqueeze(1) if x.dim() == 3 else x.transpose(1, 2)


def _rotate_halves(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, products: torch.dtype, output: torch.dtype
) -> torch.Tensor:
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return add(product(x, cos, products), product(turned, sin, products), output)


def _rotate_pairs(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, products: torch.dtype, output: torch.dtype
) -> torch.Tensor:
    half = cos.shape[-1] // 2
    cos, sin = cos[..., :half], sin[..., :half]
    even, odd = x[..., 0::2], x[..., 1::2]
    first = add(product(even, cos, products), -product(odd, sin, products), output)
    second = add(product(odd, cos, products), product(even, sin, products), output)
    return torch.cat((first, second), dim=-1)
