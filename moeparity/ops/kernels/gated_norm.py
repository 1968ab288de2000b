"""Kernel of `gated_norm`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F

from moeparity.numerics.dtypes import OF_INPUT
from moeparity.numerics.orders import NATIVE
from moeparity.numerics.rounding import product, rounded, wide, working
from moeparity.ops.kernels.exponentials import sigmoid
from moeparity.ops.kernels.glu import swiglu
from moeparity.ops.norm.gated_norm import AFTER, SIGMOID


def gated_norm(
    x: torch.Tensor, gate: torch.Tensor, *, w: Mapping[str, torch.Tensor], p: Mapping[str, Any], at: Mapping[str, Any]
) -> torch.Tensor:
    """x [B, T, heads * D], gate [B, T, ..] of as many numbers -> [B, T, heads * D].

    The statistic is in fp32, or in fp64 if x is.
    """
    groups = p["groups"] or x.shape[-1] // w["weight"].shape[0]
    weight, eps = w["weight"].view(-1, x.shape[-1] // groups), p["eps"] if at["eps"] == "config" else at["eps"]
    at = {**at, "normalized": x.dtype} if at["normalized"] == OF_INPUT else at
    heads = x.view(*x.shape[:-1], groups, -1)
    gate = _laid_out(gate, x if p["groups"] else heads)
    if (p["gated"] if at["gated"] == "config" else at["gated"]) == AFTER:
        normed = product(weight, _normalized(wide(heads), eps, at), at.get("weighted", working(x.dtype)))
        return _gated(gate, normed.view(gate.shape), p, at, at["output"]).view(x.shape)
    gated = _gated(gate, x.view(gate.shape), p, at, working(x.dtype, at["activation"])).view(heads.shape)
    return product(weight, _normalized(gated, eps, at), at["output"]).flatten(2)


def _normalized(x: torch.Tensor, eps: float, at: Mapping[str, Any]) -> torch.Tensor:
    return rounded(x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps), at["normalized"])


def _gated(
    gate: torch.Tensor, x: torch.Tensor, p: Mapping[str, Any], at: Mapping[str, Any], output: torch.dtype
) -> torch.Tensor:
    """silu(gate) * x, or sigmoid(gate) * x, of equal shapes."""
    logistic = at.get("logistic", NATIVE)
    if p["function"] == SIGMOID:
        step = gate.to(working(gate.dtype, at["activation"]))
        return product(rounded(sigmoid(step, logistic), at["activation"]), x, output)
    return swiglu(gate, x, activation=at["activation"], output=output, logistic=logistic)


def _laid_out(gate: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The gate as x is cut, [B, T, heads, D] or of groups [B, T, all channels], in memory as in transformers: one that
    is cut so is a view there of a projection, whose rows lie apart, else a copy. torch's fp32 silu on CPU goes by where
    a value stands in its vector, and a vector ends with a row that lies apart.
    """
    if gate.shape == x.shape:
        return F.pad(gate, (0, 1))[..., :-1]
    return gate.reshape(x.shape).contiguous()
