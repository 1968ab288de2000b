"""Kernels of `embedding`, `add`, `swiglu`, `sigmoid_gate`, `clamp` and `split`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F

from moeparity.numerics import rounding
from moeparity.ops.kernels import experts


def embedding(
    tokens: torch.Tensor, *, w: Mapping[str, torch.Tensor], p: Mapping[str, Any], at: Mapping[str, Any]
) -> torch.Tensor:
    """tokens [B, T] int64 -> [B, T, H]."""
    return rounding.rounded(F.embedding(tokens, w["weight"]), at["output"])


def add(
    a: torch.Tensor, b: torch.Tensor, *, w: Mapping[str, torch.Tensor], p: Mapping[str, Any], at: Mapping[str, Any]
) -> torch.Tensor:
    """a + b of equal shapes."""
    return rounding.add(a, b, at["output"])


def swiglu(
    gate: torch.Tensor, up: torch.Tensor, *, w: Mapping[str, torch.Tensor], p: Mapping[str, Any], at: Mapping[str, Any]
) -> torch.Tensor:
    """silu(gate) * up of equal shapes."""
    return experts.swiglu(gate, up, activation=at["activation"], output=at["output"])


def sigmoid_gate(
    gate: torch.Tensor, x: torch.Tensor, *, w: Mapping[str, torch.Tensor], p: Mapping[str, Any], at: Mapping[str, Any]
) -> torch.Tensor:
    """sigmoid(gate) * x; gate [B, T, 1], x [B, T, H]."""
    step = gate.dtype if gate.dtype == at["activation"] else rounding.working(gate.dtype, at["activation"])
    share = rounding.rounded(torch.sigmoid(gate.to(step)), at["activation"])
    return rounding.product(share, x, at["output"])


def clamp(
    x: torch.Tensor, *, w: Mapping[str, torch.Tensor], p: Mapping[str, Any], at: Mapping[str, Any]
) -> torch.Tensor:
    """x of any shape, held between -limit and limit."""
    return rounding.rounded(x, at["output"]).clamp(-p["limit"], p["limit"])


def split(
    x: torch.Tensor, *, w: Mapping[str, torch.Tensor], p: Mapping[str, Any], at: Mapping[str, Any]
) -> tuple[torch.Tensor, ...]:
    """Views of the last axis, one per part."""
    return torch.split(x, list(p["parts"].values()), dim=-1)
