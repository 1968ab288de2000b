"""Kernels of `attention` and `mla`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F

from moeparity.numerics import rounding
from moeparity.numerics.rounding import rounded, wide
from moeparity.ops.kernels.rope import yarn_mscale


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    w: Mapping[str, torch.Tensor],
    p: Mapping[str, Any],
    at: Mapping[str, Any],
) -> torch.Tensor:
    """q [B, H, T, D], k [B, G, T, D], v [B, T, G, D] -> [B, T, H * D]."""
    v = v.transpose(1, 2)
    if at["kv_layout"] == "cached":
        k, v = k.contiguous(), v.contiguous()
    return _causal(q, k, v, q.shape[-1] ** -0.5, at)


def mla(
    q_nope: torch.Tensor,
    q_rope: torch.Tensor,
    latent: torch.Tensor,
    k_rope: torch.Tensor,
    *,
    w: Mapping[str, torch.Tensor],
    p: Mapping[str, Any],
    at: Mapping[str, Any],
) -> torch.Tensor:
    """q_nope [B, T, H, N], q_rope [B, H, T, R], latent [B, T, L], k_rope [B, 1, T, R] -> [B, T, H * V]."""
    q = torch.cat((q_nope.transpose(1, 2), q_rope), dim=-1)
    expanded = rounding.linear(latent.unsqueeze(1), w["kv_b"], None, inputs=at["kv_b"], output=at["kv_b"])
    heads = expanded.view(*latent.shape[:2], p["heads"], -1).transpose(1, 2)
    k_nope, v = torch.split(heads, [heads.shape[-1] - p["value_dim"], p["value_dim"]], dim=-1)
    k = torch.cat((k_nope, k_rope.expand(-1, p["heads"], -1, -1)), dim=-1).contiguous()
    return _causal(q, k, v, _softmax_scale(q.shape[-1], p["rope"]), at)


def _softmax_scale(width: int, rope: Mapping[str, Any]) -> float:
    """1 / sqrt(width), times mscale twice where DeepSeek's yarn asks for it."""
    scale: float = width**-0.5
    if rope["rope_type"] == "default" or not rope.get("mscale_all_dim"):
        return scale
    mscale = yarn_mscale(rope["factor"], rope["mscale_all_dim"])
    return scale * mscale * mscale


def _causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, at: Mapping[str, Any]) -> torch.Tensor:
    out = (_sdpa if at["implementation"] == "sdpa" else _eager)(q, k, v, scale, at)
    return out.transpose(1, 2).contiguous().flatten(2)


def _eager(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, at: Mapping[str, Any]) -> torch.Tensor:
    k, v = _repeat_heads(k, q.shape[1] // k.shape[1]), _repeat_heads(v, q.shape[1] // v.shape[1])
    dtype = at["scores"]
    scores = _matmul(q, k.transpose(2, 3), dtype) * scale
    # Hugging Face adds the smallest finite number, not -inf; after the softmax both are 0, but the addition rounds.
    hidden = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).triu(1)
    scores = scores + torch.zeros_like(hidden, dtype=dtype).masked_fill_(hidden, torch.finfo(dtype).min)
    probabilities = rounded(F.softmax(scores, dim=-1, dtype=torch.float32), at["probabilities"])
    return _matmul(probabilities, v, at["output"])


def _sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, at: Mapping[str, Any]) -> torch.Tensor:
    # One dtype for all three: the widest, should an earlier site have left one of them in fp32.
    common = torch.promote_types(torch.promote_types(q.dtype, k.dtype), v.dtype)
    q, k, v = (rounded(x, common) for x in (q, k, v))
    groups = q.shape[1] // k.shape[1]
    grouped = groups > 1 and k.shape[-1] == v.shape[-1] <= 256
    if not grouped:
        k, v = _repeat_heads(k, groups), _repeat_heads(v, groups)
    out = F.scaled_dot_product_attention(q, k, v, scale=scale, is_causal=q.shape[2] > 1, enable_gqa=grouped)
    return rounded(out, at["output"])


def _matmul(a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Batched a @ b: torch's kernel of `dtype` if both operands are in it, else its fp32 kernel and one rounding."""
    if a.dtype == b.dtype == dtype:
        return torch.matmul(a, b)
    return rounded(torch.matmul(wide(a), wide(b)), dtype)


def _repeat_heads(x: torch.Tensor, times: int) -> torch.Tensor:
    """[B, G, T, D] -> [B, G * times, T, D]; the view itself when there is nothing to repeat, as transformers does."""
    if times == 1:
        return x
    b, g, t, d = x.shape
    return x[:, :, None].expand(b, g, times, t, d).reshape(b, g * times, t, d)
