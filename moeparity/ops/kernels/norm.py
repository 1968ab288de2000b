"""Kernel of `rms_norm`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from moeparity.numerics.rounding import product, rounded


def rms_norm(
    x: torch.Tensor, *, w: Mapping[str, torch.Tensor], p: Mapping[str, Any], at: Mapping[str, Any]
) -> torch.Tensor:
    """x [..., C] of any float dtype -> [..., C]; statistic in fp32."""
    eps = p["eps"] if at["eps"] == "config" else at["eps"]
    x_f = x.to(torch.float32)
    rstd = torch.rsqrt(x_f.pow(2).mean(-1, keepdim=True) + eps)
    if at.get("association") == "weight_rstd_first":
        return rounded(x_f * (rstd * w["weight"].to(torch.float32)), at["output"])
    return product(w["weight"], rounded(x_f * rstd, at["normalized"]), at["output"])
