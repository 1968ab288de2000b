"""Kernel of `indexer`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F

from moeparity.numerics.rounding import product, rounded
from moeparity.ops.attribute import RefusedError
from moeparity.ops.kernels.attention_forms import matmul, visible_keys
from moeparity.ops.kernels.router import best


def indexer(
    q: torch.Tensor,
    k: torch.Tensor,
    weights: torch.Tensor,
    mask: torch.Tensor,
    *,
    w: Mapping[str, torch.Tensor],
    p: Mapping[str, Any],
    at: Mapping[str, Any],
) -> torch.Tensor:
    """q [B, H, T, D], k [B, 1, S, D], weights [B, T, H], mask bool [B, S] (for a pack [1, T, T]) -> int64
    [B, T, top_k].

    The queries are the last T of S tokens. Raises RefusedError for a static cache with too few places.
    """
    queries, keys, places = q.shape[2], k.shape[2], int(at["allocated"])
    if places and keys > places:
        raise RefusedError("allocated", f"{keys} tokens do not fit into {places} places. Allocate more.")
    free = max(0, places - keys)
    k, mask = F.pad(k.squeeze(1), (0, 0, 0, free)), F.pad(mask, (0, free))
    by_token = q.transpose(1, 2).contiguous()
    scores = matmul(by_token, k.transpose(-1, -2).unsqueeze(1), at["scores"]) * k.shape[-1] ** -0.5
    scores = F.relu(scores) if p.get("relu", True) else scores
    share = product(weights, weights.new_tensor(q.shape[1] ** -0.5, dtype=at["weights"]), at["weights"])
    total = matmul(share.unsqueeze(-2), scores, at["total"]).squeeze(-2)
    hidden = ~visible_keys(mask, queries, keys - queries)[:, 0]
    total = rounded(total, at["total"]).masked_fill(hidden, float("-inf"))
    chosen = best(total, min(p["top_k"], total.shape[-1]), at)
    chosen = chosen.masked_fill(hidden.expand_as(total).gather(-1, chosen), -1)
    return F.pad(chosen, (0, p["top_k"] - chosen.shape[-1]), value=-1)
