"""What `attention` and `mla` share: the forms of attention, and how a cache hands keys and values on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F

from moeparity.numerics import rounding
from moeparity.numerics.gemm_forms import ALL
from moeparity.numerics.orders import NATIVE
from moeparity.numerics.rounding import rounded, tf32, working
from moeparity.ops.attention import SCORE
from moeparity.ops.attention_forms import FLASH, SDPA
from moeparity.ops.attribute import RefusedError
from moeparity.ops.kernels.exponentials import softmax
from moeparity.ops.kernels.flash import Heads, flash
from moeparity.ops.kernels.flash_blocks import flash_in_blocks


def with_own(stored: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """`stored` [B, G, S, D] with its last T tokens replaced by `new` [B, G, T, D], the values as they were computed."""
    earlier = stored.shape[2] - new.shape[2]
    return torch.cat((stored[:, :, :earlier], new), dim=2) if earlier else new


def cached(
    k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor, queries: int, window: int | None, at: Mapping[str, Any]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]:
    """Keys, values and mask as a cache hands them on, and how many places at the end of the cache are free.

    Imitates transformers 5.23.0, cache_utils.py: `update` of DynamicLayer, DynamicSlidingWindowLayer, StaticLayer and
    StaticSlidingWindowLayer.
    """
    layout = at.get("kv_layout")
    if layout is None:
        # An online softmax, for which the layout is not a choice, loads tiles: it always gets the same layout.
        return _copy(k), _copy(v), mask, 0
    if layout == "projected":
        return k, v, mask, 0
    keys, free = k.shape[2], 0
    before, reach = keys - queries, None if window is None else window - 1
    if layout == "static":
        places = int(at["allocated"]) if window is None else min(window, int(at["allocated"]))
        if window is None and keys > places:
            raise RefusedError("allocated", f"{keys} tokens do not fit into {places} places. Allocate more.")
        if not before and keys > places:
            # Nothing was dropped by the window, so nothing is copied.
            return k, v, mask, 0
        free = max(0, places - keys)
        reach = None if before < places else places - 1
    within_reach = slice(0 if reach is None else max(0, before - reach), keys)
    k, v, mask = _copy(k[:, :, within_reach]), _copy(v[:, :, within_reach]), mask[..., within_reach]
    if not free:
        return k, v, mask, 0
    return F.pad(k, (0, 0, 0, free)), F.pad(v, (0, 0, 0, free)), F.pad(mask, (0, free)), free


def _copy(x: torch.Tensor) -> torch.Tensor:
    """A contiguous copy in any case: `contiguous` would leave a view of one row its strides and its address."""
    return x.new_empty(x.shape).copy_(x)


def softmax_scale(width: int, p: Mapping[str, Any]) -> float:
    """1 / sqrt of the width of a head's query, or what the parameters give instead. Raises RefusedError."""
    of, factor = p.get("scale_width"), p.get("softmax_scale")
    if of is not None and of < 1:
        raise RefusedError("fault", f"no query is {of} wide.")
    once = float((width if of is None else of) ** -0.5)
    return float(1.0 if factor is None else factor) * once ** int(p.get("scaled", 1))


def causal(heads: Heads, at: Mapping[str, Any]) -> torch.Tensor:
    """The causal attention of all heads in the node's form, [B, H, T, V]."""
    return {SDPA: _sdpa, FLASH: _flash}.get(at["implementation"], _eager)(heads, at)


def side_by_side(heads: torch.Tensor) -> torch.Tensor:
    """Heads [B, H, T, V] side by side: [B, T, H * V]."""
    return heads.transpose(1, 2).contiguous().flatten(2)


def visible_keys(
    mask: torch.Tensor, queries: int, before: int, *, window: int | None = None, ahead: int = 0
) -> torch.Tensor:
    """Which keys a query sees, bool [B or 1, 1, T, S], by a mask [B, S], or [1, T, T] in a pack. The queries stand
    behind so many keys; one that is padding on the left sees none.
    """
    visible = torch.ones(1, 1, queries, mask.shape[-1], dtype=torch.bool, device=mask.device).tril(before + ahead)
    if window is not None:
        visible = visible.triu(before + 1 - window)
    if bool(mask.all()):
        return visible
    return visible & (mask[:, None, None, :] if mask.dim() == 2 else mask[:, None])


def _visible(x: Heads) -> torch.Tensor:
    """Which keys a query of these sees, bool [B or 1, 1, T, S]."""
    queries, keys = x.q.shape[2], x.mask.shape[-1]
    visible = visible_keys(x.mask, queries, keys - x.free - queries, window=x.window, ahead=x.ahead)
    if x.selected is None:
        return visible
    # What is none of the keys is written behind them.
    places = torch.where(x.selected < 0, keys, x.selected)
    chosen = torch.zeros(*places.shape[:-1], keys + 1, dtype=torch.bool, device=places.device)
    return visible & chosen.scatter_(-1, places, value=True)[:, None, :, :keys]


def _eager(x: Heads, at: Mapping[str, Any]) -> torch.Tensor:
    k, v = _repeated(x)
    dtype, cast = at["scores"], tf32 if at["tf32"] == "yes" else _as_it_is
    scores = matmul(cast(x.q), cast(k).transpose(2, 3), dtype) * x.scale
    # Hugging Face adds the smallest finite number, not -inf: the addition rounds, and a row without any visible key
    # becomes a mean over all keys instead of NaN.
    hidden = ~_visible(x)
    scores = scores + torch.zeros_like(hidden, dtype=dtype).masked_fill_(hidden, torch.finfo(dtype).min)
    share = None if x.sinks is None or at.get("sink_as", SCORE) == SCORE else _sink_factor(scores, x.sinks, x.counted)
    if share is None and (x.sinks is not None or "shifted" in at):
        probabilities = _with_sinks(scores, x.sinks, x.counted, at)
    else:
        probabilities = softmax(scores, working(dtype, at["probabilities"]), at)
    out = matmul(cast(rounded(probabilities, at["probabilities"])), cast(v), at["output"])
    return out if share is None else rounding.product(out, rounded(share, at["output"]), at["output"])


def _sink_factor(scores: torch.Tensor, sinks: torch.Tensor, counted: int) -> torch.Tensor:
    """sigmoid(log-sum-exp - sink) of scores [B, H, T, S], [B, H, T, 1], in fp32, in fp64 if they are."""
    lse = torch.logsumexp(scores, dim=-1, keepdim=True) - math.log(counted)
    return rounding.wide(rounding.add(lse, -sinks, scores.dtype)).sigmoid()


def _with_sinks(scores: torch.Tensor, sinks: torch.Tensor | None, counted: int, at: Mapping[str, Any]) -> torch.Tensor:
    """Softmax of scores [B, H, T, S] in which each row has its sink `counted` times, where there are sinks; the result,
    without the sinks, is a view, as in transformers.

    transformers subtracts the maximum first, in the scores' dtype (GptOssAttention, eager_attention_forward).
    """
    keys = scores.shape[-1]
    if sinks is not None:
        scores = torch.cat((scores, sinks.expand(*scores.shape[:3], counted)), dim=-1)
    shifted = rounding.add(scores, -scores.amax(dim=-1, keepdim=True), at["shifted"])
    native = at["softmax"] == NATIVE and at["shifted"] == at["probabilities"]
    step = at["shifted"] if native else working(at["shifted"], at["probabilities"])
    return softmax(shifted, step, at)[..., :keys]


def _as_it_is(x: torch.Tensor) -> torch.Tensor:
    return x


def _flash(x: Heads, at: Mapping[str, Any]) -> torch.Tensor:
    if x.ahead:
        raise RefusedError(
            "implementation", f"its tiles end at the diagonal, and {x.ahead} tokens ahead are asked for."
        )
    if x.sinks is not None and x.counted != 1:
        raise RefusedError("implementation", f"it counts a sink once, and {x.counted} times are asked for.")
    k, v = _repeated(x)
    attend = flash if at.get("rows", ALL) == ALL else flash_in_blocks
    return attend(replace(x, k=k, v=v), _visible(x), at)


def _sdpa(x: Heads, at: Mapping[str, Any]) -> torch.Tensor:
    # One dtype for all three: the widest, in case an earlier site left one of them in fp32.
    common = torch.promote_types(torch.promote_types(x.q.dtype, x.k.dtype), x.v.dtype)
    x = replace(x, q=rounded(x.q, common), k=rounded(x.k, common), v=rounded(x.v, common))
    q, k, v = x.q, x.k, x.v
    b, h, t, _ = q.shape
    groups = h // k.shape[1]
    # If torch can be told by an argument what to mask (no padding, no key out of reach), no mask is built.
    in_reach = x.window is None or k.shape[2] < x.window
    at_once = t == k.shape[2] or (t == 1 and at.get("kv_layout") != "static")
    plain = in_reach and at_once and not x.ahead and x.selected is None and bool(x.mask.all())
    visible = None if plain else _visible(x).expand(b, -1, -1, -1)
    grouped = groups > 1 and visible is None and k.shape[-1] == v.shape[-1] <= 256
    if groups > 1 and not grouped and t == 1:
        q = q.reshape(b, h // groups, groups, -1)
    elif not grouped:
        k, v = _repeated(x)
    out = F.scaled_dot_product_attention(
        q, k, v, attn_mask=visible, scale=x.scale, is_causal=t > 1 and visible is None, enable_gqa=grouped
    )
    return rounded(out.reshape(b, h, t, -1), at["output"])


def matmul(a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Batched a @ b. If both operands have `dtype` it is torch's kernel of that dtype, else one in `working` dtype,
    rounded once.
    """
    if a.dtype == b.dtype == dtype:
        return torch.matmul(a, b)
    step = working(a.dtype, b.dtype, dtype)
    return rounded(torch.matmul(a.to(step), b.to(step)), dtype)


def _repeated(x: Heads) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values [B, H, T, D], repeated so that each query head has its own."""
    times = x.q.shape[1] // x.k.shape[1]
    return _repeat_heads(x.k, times), _repeat_heads(x.v, times)


def _repeat_heads(x: torch.Tensor, times: int) -> torch.Tensor:
    """[B, G, T, D] -> [B, G * times, T, D]; for times = 1 the view itself, as in transformers."""
    if times == 1:
        return x
    b, g, t, d = x.shape
    return x[:, :, None].expand(b, g, times, t, d).reshape(b, g * times, t, d)
