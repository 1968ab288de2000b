"""Kernel of `rms_norm`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from moeparity.numerics.rounding import product, rounded, wide


def rms_norm(
    x: torch.Tensor, *, w: Mapping[str, torch.Tensor], p: Mapping[str, Any], at: Mapping[str, Any]
) -> torch.Tensor:
    """x [..., C] of any float dtype -> [..., C] or [..., heads, C / heads]; statistic in fp32, in fp64 of fp64."""
    eps = p["eps"] if at["eps"] == "config" else at["eps"]
    x_f = wide(x)
    rstd = torch.rsqrt(x_f.pow(2).mean(-1, keepdim=True) + eps)
    if at.get("association") == "weight_rstd_first":
        out = rounded(x_f * (rstd * wide(w["weight"])), at["output"])
    else:
        out = product(w["weight"], rounded(x_f * rstd, at["normalized"]), at["output"])
    return out if p["heads"] is None else out.view(*out.shape[:-1], p["heads"], -1)
