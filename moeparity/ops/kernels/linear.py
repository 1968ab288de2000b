"""Kernels of `linear`, `gate` and `lm_head`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from moeparity.numerics import rounding


def linear(
    x: torch.Tensor, *, w: Mapping[str, torch.Tensor], p: Mapping[str, Any], at: Mapping[str, Any]
) -> torch.Tensor:
    """x [B, T, K] -> [B, T, N], or [B, T, heads, N / heads]."""
    out = rounding.linear(x, w["weight"], w.get("bias"), inputs=at["inputs"], output=at["output"])
    return out if p["heads"] is None else out.view(*out.shape[:-1], p["heads"], -1)


def gate(
    x: torch.Tensor, *, w: Mapping[str, torch.Tensor], p: Mapping[str, Any], at: Mapping[str, Any]
) -> torch.Tensor:
    """x [B, T, K] -> router logits [B, T, E]; the GEMM sees [B * T, K]."""
    flat = x.reshape(-1, x.shape[-1])
    return rounding.linear(flat, w["weight"], None, inputs=at["inputs"], output=at["output"]).view(*x.shape[:-1], -1)


def lm_head(
    x: torch.Tensor, *, w: Mapping[str, torch.Tensor], p: Mapping[str, Any], at: Mapping[str, Any]
) -> torch.Tensor:
    """x [B, T, H] -> logits [B, T, V]."""
    return rounding.linear(x, w["weight"], None, inputs=at["inputs"], output=at["output"])
