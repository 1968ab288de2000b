"""Kernels of `attention` and `mla`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F

from moeparity.numerics import rounding
from moeparity.numerics.rounding import rounded, working
from moeparity.ops.kernels.rope import yarn_mscale


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor,
    *,
    w: Mapping[str, torch.Tensor],
    p: Mapping[str, Any],
    at: Mapping[str, Any],
) -> torch.Tensor:
    """q [B, H, T, D], k [B, G, T, D], v [B, T, G, D], mask [B, T] bool -> [B, T, H * D]."""
    v = v.transpose(1, 2)
    if at["kv_layout"] == "cached":
        k, v = k.contiguous(), v.contiguous()
    return _causal(q, k, v, mask, p["window"], q.shape[-1] ** -0.5, at)


def mla(
    q_nope: torch.Tensor,
    q_rope: torch.Tensor,
    latent: torch.Tensor,
    k_rope: torch.Tensor,
    mask: torch.Tensor,
    *,
    w: Mapping[str, torch.Tensor],
    p: Mapping[str, Any],
    at: Mapping[str, Any],
) -> torch.Tensor:
    """q_nope [B, T, H, N], q_rope [B, H, T, R], latent [B, T, L], k_rope [B, 1, T, R], mask [B, T] -> [B, T, H * V]."""
    q = torch.cat((q_nope.transpose(1, 2), q_rope), dim=-1)
    expanded = rounding.linear(latent.unsqueeze(1), w["kv_b"], None, inputs=at["kv_b"], output=at["kv_b"])
    heads = expanded.view(*latent.shape[:2], p["heads"], -1).transpose(1, 2)
    k_nope, v = torch.split(heads, [heads.shape[-1] - p["value_dim"], p["value_dim"]], dim=-1)
    k = torch.cat((k_nope, k_rope.expand(-1, p["heads"], -1, -1)), dim=-1).contiguous()
    return _causal(q, k, v, mask, None, _softmax_scale(q.shape[-1], p["rope"]), at)


def _softmax_scale(width: int, rope: Mapping[str, Any]) -> float:
    """1 / sqrt(width), times mscale twice where DeepSeek's yarn asks for it."""
    scale: float = width**-0.5
    if rope["rope_type"] == "default" or not rope.get("mscale_all_dim"):
        return scale
    mscale = yarn_mscale(rope["factor"], rope["mscale_all_dim"])
    return scale * mscale * mscale


def _causal(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor,
    window: int | None,
    scale: float,
    at: Mapping[str, Any],
) -> torch.Tensor:
    attend = _sdpa if at["implementation"] == "sdpa" else _eager
    return attend(q, k, v, mask, window, scale, at).transpose(1, 2).contiguous().flatten(2)


def _visible(mask: torch.Tensor, window: int | None) -> torch.Tensor:
    """Which keys a query sees, [B or 1, 1, T, T] bool; a padded query at the left sees none at all."""
    length = mask.shape[1]
    visible = torch.ones(1, 1, length, length, dtype=torch.bool, device=mask.device).tril()
    if window is not None:
        visible = visible.triu(1 - window)
    return visible if bool(mask.all()) else visible & mask[:, None, None, :]


def _eager(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor,
    window: int | None,
    scale: float,
    at: Mapping[str, Any],
) -> torch.Tensor:
    k, v = _repeat_heads(k, q.shape[1] // k.shape[1]), _repeat_heads(v, q.shape[1] // v.shape[1])
    dtype = at["scores"]
    scores = _matmul(q, k.transpose(2, 3), dtype) * scale
    # Hugging Face adds the smallest finite number, not -inf: the addition rounds, and a row without any visible key
    # becomes a mean over all keys instead of NaN.
    hidden = ~_visible(mask, window)
    scores = scores + torch.zeros_like(hidden, dtype=dtype).masked_fill_(hidden, torch.finfo(dtype).min)
    step = working(dtype, at["probabilities"])
    probabilities = rounded(F.softmax(scores, dim=-1, dtype=step), at["probabilities"])
    return _matmul(probabilities, v, at["output"])


def _sdpa(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor,
    window: int | None,
    scale: float,
    at: Mapping[str, Any],
) -> torch.Tensor:
    # One dtype for all three: the widest, should an earlier site have left one of them in fp32.
    common = torch.promote_types(torch.promote_types(q.dtype, k.dtype), v.dtype)
    q, k, v = (rounded(x, common) for x in (q, k, v))
    b, h, t, _ = q.shape
    groups = h // k.shape[1]
    # What torch can be told in a word is not spelled out as a mask: no padding in these sequences, none out of reach.
    plain = (window is None or t < window) and bool(mask.all())
    visible = None if plain else _visible(mask, window).expand(b, -1, -1, -1)
    grouped = groups > 1 and visible is None and k.shape[-1] == v.shape[-1] <= 256
    if groups > 1 and not grouped and t == 1:
        q = q.reshape(b, h // groups, groups, -1)
    elif not grouped:
        k, v = _repeat_heads(k, groups), _repeat_heads(v, groups)
    out = F.scaled_dot_product_attention(
        q, k, v, attn_mask=visible, scale=scale, is_causal=t > 1 and visible is None, enable_gqa=grouped
    )
    return rounded(out.reshape(b, h, t, -1), at["output"])


def _matmul(a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Batched a @ b: torch's kernel of `dtype` if both operands are in it, else of `working` dtype and one rounding."""
    if a.dtype == b.dtype == dtype:
        return torch.matmul(a, b)
    step = working(a.dtype, b.dtype, dtype)
    return rounded(torch.matmul(a.to(step), b.to(step)), dtype)


def _repeat_heads(x: torch.Tensor, times: int) -> torch.Tensor:
    """[B, G, T, D] -> [B, G * times, T, D]; the view itself when there is nothing to repeat, as transformers does."""
    if times == 1:
        return x
    b, g, t, d = x.shape
    return x[:, :, None].expand(b, g, times, t, d).reshape(b, g * times, t, d)
