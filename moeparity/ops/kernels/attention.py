"""Kernel of `attention`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from moeparity.ops.kernels.attention_forms import cached, causal, side_by_side, softmax_scale, with_own
from moeparity.ops.kernels.flash import Heads
from moeparity.ops.kernels.pieces import each, gathered, parts
from moeparity.ops.kernels.placement import shared
from moeparity.ops.placement import cut


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor,
    own_k: torch.Tensor | None = None,
    own_v: torch.Tensor | None = None,
    *,
    w: Mapping[str, torch.Tensor],
    p: Mapping[str, Any],
    at: Mapping[str, Any],
) -> torch.Tensor:
    """q [B, H, T, D], k and v [B, G, S, D], mask bool [B, S] (for a pack [1, T, T]) -> [B, T, H * D].

    The queries are the last T of S tokens. own_k [B, G, T, D] and own_v [B, T, G, D], if given, replace the keys and
    values of these tokens in k and v.
    """
    if own_k is not None and own_v is not None:
        k, v = with_own(k, own_k), with_own(v, own_v.transpose(1, 2))
    if p.get("chunked") and p["window"] is not None:
        mask = _within_chunks(mask, q.shape[2], p["window"])
    k, v, mask, free = cached(k, v, mask, q.shape[2], p["window"], at)
    pieces = cut(at)
    ranks = zip(parts(q, pieces, 1), shared(k, pieces, 1), shared(v, pieces, 1), strict=True)
    ahead, counted = p.get("ahead", 0), p.get("sink_times", 1)
    at_all = Heads(
        q=q, k=k, v=v, mask=mask, window=p["window"], scale=softmax_scale(q.shape[-1], p), free=free, ahead=ahead,
        counted=counted,
    )  # fmt: skip
    heads = [replace(at_all, q=q, k=k, v=v) for q, k, v in ranks]
    if "sinks" in w:
        owned = zip(heads, parts(w["sinks"], pieces, 0), strict=True)
        heads = [replace(piece, sinks=sinks.view(1, -1, 1, 1)) for piece, sinks in owned]
    return gathered(each(lambda piece: side_by_side(causal(piece, at)), ((piece,) for piece in heads), pieces), pieces)


def _within_chunks(mask: torch.Tensor, queries: int, size: int) -> torch.Tensor:
    """Which keys lie in a query's chunk and are real: mask [B, S], or [1, T, T] in a pack -> bool [B or 1, T, S].

    Imitates transformers 5.23.0, masking_utils.py create_chunked_causal_mask: chunks begin with the first real token of
    a row, in a pack with the first token that a query's sequence lets it see.
    """
    visible = mask[:, None, :] if mask.dim() == 2 else mask
    places = torch.arange(mask.shape[-1], device=mask.device)
    before = (visible.cumsum(-1) == 0).sum(-1, keepdim=True)
    of_keys, of_queries = (places - before) // size, (places[-queries:, None] - before) // size
    return visible & (of_keys == of_queries)
