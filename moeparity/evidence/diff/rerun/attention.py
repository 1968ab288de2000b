"""Attention as one op: online softmax over tiles of keys whose width, place and order a way's seed draws."""

from __future__ import annotations

import math
import random
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from moeparity.evidence.diff.rerun.call_arguments import Arguments
from moeparity.evidence.diff.rerun.way import NotDrawnError, Way
from moeparity.numerics.orders import NATIVE
from moeparity.ops.kernels.flash import Heads, attend
from moeparity.ops.kernels.key_tiles import Tile

_TILES = (16, 32, 64, 128, 256)
"""Widths of the tiles of keys that kernels take."""
_HIDING = -1e4
"""What is added to a score to hide it is no more than this."""


def attention(a: Arguments, way: Way) -> tuple[Tensor, ...]:
    """q [B, H, T, D], k [B, G, S, D], v [B, G, S, V] -> the output, and the logarithm of the sum of exponentials."""
    q, k, v = a["query"], a["key"], a["value"]
    if a["dropout_p"]:
        raise NotDrawnError("attention with dropout")
    if q.dim() != k.dim() or k.dim() != 4 or q.shape[1] % k.shape[1]:
        raise NotDrawnError("a form of attention whose orders are not drawn here")
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    scale = q.shape[-1] ** -0.5 if a["scale"] is None else a["scale"]
    visible, bias = _visible(a, q, k)
    if way.exact or bias is not None:
        out, lse = _written_out(q, k, v, visible, bias, scale, way)
    else:
        out, lse = _in_tiles(q, k, v, visible, scale, way)
    return way.narrowed(out, a.out[0]), lse if len(a.out) < 2 else way.narrowed(lse, a.out[1])


def _visible(a: Arguments, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor | None]:
    """Which keys each query sees, bool [B or 1, H or 1, T, S]; and a bias, where the mask is one."""
    visible = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool)
    visible = (visible.tril() if a["is_causal"] else visible)[None, None]
    mask = a.by_name.get("attn_mask", a.by_name.get("attn_bias"))
    if mask is None:
        return visible, None
    if mask.dtype == torch.bool:
        return visible & mask, None
    if bool(((mask == 0) | (mask <= _HIDING)).all()):
        return visible & (mask == 0), None
    return visible, mask


def _in_tiles(q: Tensor, k: Tensor, v: Tensor, visible: Tensor, scale: float, way: Way) -> tuple[Tensor, Tensor]:
    """By the kernel of the op `attention`: permuted head dimensions, and another cut of the keys."""
    draw = random.Random(way.seed)  # noqa: S311
    at: dict[str, Any] = {
        "exponential": draw.choice(("exp", "exp2", "exp2_fma")),
        "kv_order": draw.choice(("ascending", "descending")),
        "normalize": draw.choice(("reciprocal", "divide")),
        "row_sum": f"unordered({way.seed})", "probabilities": q.dtype, "tf32": "no",
        "scores_order": NATIVE, "values_order": NATIVE, "rescale_above": 0, "contraction": "none",
    }  # fmt: skip
    width = draw.choice(_TILES)
    first = draw.randrange(1, width + 1)
    edges = [0, *range(first, k.shape[2], width), k.shape[2]]
    order = way.permutation(q.shape[-1])
    wide_q, wide_k, wide_v = (way.wide(x) for x in (q[..., order], k[..., order], v))
    visible = visible.expand(-1, -1, q.shape[2], k.shape[2])
    tiles = [
        Tile(wide_k[:, :, low:high], wide_v[:, :, low:high], visible[..., low:high])
        for low, high in pairwise(edges)
        if high > low
    ]
    mask = torch.ones(q.shape[0], k.shape[2], dtype=torch.bool)
    run = attend(Heads(q=wide_q, k=wide_k, v=wide_v, mask=mask, window=None, scale=scale), tiles, at)
    return run.out, run.lse.squeeze(-1)


def _written_out(
    q: Tensor, k: Tensor, v: Tensor, visible: Tensor, bias: Tensor | None, scale: float, way: Way
) -> tuple[Tensor, Tensor]:
    """All scores at once; head dimensions and keys permuted."""
    order, keys = way.permutation(q.shape[-1]), way.permutation(k.shape[2])
    scores = way.wide(q)[..., order] @ way.wide(k)[:, :, keys][..., order].transpose(-1, -2) * scale
    scores = scores if bias is None else scores + way.wide(bias).expand(scores.shape)[..., keys]
    scores = scores.masked_fill(~visible.expand(scores.shape)[..., keys], -math.inf)
    highest = scores.amax(-1, keepdim=True)
    highest = torch.where(highest == -math.inf, 0.0, highest)
    e = way.function(torch.exp, scores - highest)
    total = way.sum(e).unsqueeze(-1)
    whole = torch.where(total == 0, 1.0, total)
    weights = way.narrowed(e, q.dtype).to(e.dtype)
    out = weights @ way.wide(v)[:, :, keys] / whole
    return out, (torch.log(total) + highest).squeeze(-1)
