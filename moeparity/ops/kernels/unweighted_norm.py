"""Kernel of `unweighted_norm`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from moeparity.numerics.rounding import rounded, working


def unweighted_norm(
    x: torch.Tensor, *, w: Mapping[str, torch.Tensor], p: Mapping[str, Any], at: Mapping[str, Any]
) -> torch.Tensor:
    """x [..., C] of any float dtype -> [..., C]."""
    eps = p["eps"] if at["eps"] == "config" else at["eps"]
    x = x.to(working(x.dtype, at["output"]))
    return rounded(x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps), at["output"])
