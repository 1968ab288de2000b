"""Kernel of `layer_norm`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F

from moeparity.numerics.rounding import rounded, wide, working
from moeparity.ops.norm.layer_norm import NATIVE


def layer_norm(
    x: torch.Tensor, *, w: Mapping[str, torch.Tensor], p: Mapping[str, Any], at: Mapping[str, Any]
) -> torch.Tensor:
    """x [..., C] of any float dtype -> [..., C]. torch's kernel takes x, weight and bias in one dtype: that of the
    output if all have it, else fp32 (fp64 if one has).
    """
    eps = p["eps"] if at["eps"] == "config" else at["eps"]
    weight, bias = w["weight"], w.get("bias")
    if at["form"] == NATIVE:
        dtypes = {x.dtype, weight.dtype, at["output"], *(() if bias is None else (bias.dtype,))}
        step = at["output"] if len(dtypes) == 1 else working(*dtypes)
        operands = (weight.to(step), None if bias is None else bias.to(step))
        return rounded(F.layer_norm(x.to(step), (x.shape[-1],), *operands, eps), at["output"])
    x_f = wide(x)
    centred = x_f - x_f.mean(-1, keepdim=True)
    normed = rounded(centred * torch.rsqrt(centred.pow(2).mean(-1, keepdim=True) + eps), at["normalized"])
    step = working(normed.dtype, weight.dtype, at["output"])
    out = weight.to(step) * normed.to(step)
    return rounded(out if bias is None else out + bias.to(step), at["output"])
