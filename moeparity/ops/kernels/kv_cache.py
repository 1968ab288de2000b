"""Kernel of `kv_cache`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from moeparity.numerics.quantised import to_fp8
from moeparity.numerics.rounding import rounded, working
from moeparity.ops.kv_cache import CHECKPOINT, HEAD, SATURATES, STATIC


def kv_cache(
    k: torch.Tensor, v: torch.Tensor, *, w: Mapping[str, torch.Tensor], p: Mapping[str, Any], at: Mapping[str, Any]
) -> tuple[torch.Tensor, torch.Tensor]:
    """k [B, G, T, D], v [B, T, G, D] or [B, T, L] -> k [B, G, T, D], v [B, G, T, D] or [B, 1, T, L]."""
    v = v.unsqueeze(1) if v.dim() == k.dim() - 1 else v.transpose(1, 2)
    at = {**at, **w} if at.get("scale") == CHECKPOINT else at
    return _read_back(k, at, "k_scale"), _read_back(v, at, "v_scale")


def _read_back(x: torch.Tensor, at: Mapping[str, Any], scale: str) -> torch.Tensor:
    """x [B, G, T, D] after it was stored and read; x itself if it is stored unrounded."""
    stored = at["stored"]
    if not isinstance(stored, torch.dtype):
        return x
    if "dequantized" not in at:
        return rounded(x, stored)
    factor = _scale(x, at, scale)
    bits = to_fp8(
        rounded(_wide(x) / factor, at["quotient"]), stored, saturates=at.get("overflow", SATURATES) == SATURATES
    )
    return rounded(bits.to(factor.dtype) * factor, at["dequantized"])


def _scale(x: torch.Tensor, at: Mapping[str, Any], name: str) -> torch.Tensor:
    """One scale, or one for each head, [G, 1, 1]."""
    if at["scale"] in (STATIC, CHECKPOINT):
        return torch.as_tensor(at[name], dtype=torch.float32, device=x.device).to(_wide(x).dtype)
    highest = _wide(x).abs()
    highest = highest.amax((0, 2, 3))[:, None, None] if at["scale"] == HEAD else highest.amax()
    factor = highest / torch.finfo(at["stored"]).max
    return torch.where(factor == 0, torch.ones_like(factor), factor)


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x.to(working(x.dtype))
