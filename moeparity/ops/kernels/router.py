"""Kernel of `router`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F

from moeparity.numerics.rounding import rounded, wide, working


def router(
    logits: torch.Tensor, *, w: Mapping[str, torch.Tensor], p: Mapping[str, Any], at: Mapping[str, Any]
) -> tuple[torch.Tensor, torch.Tensor]:
    """logits [B, T, E] -> ids int64 and weights, both [B, T, K]."""
    flat = logits.reshape(-1, logits.shape[-1]).to(working(logits.dtype, at["scores"]))
    scores = F.softmax(flat, dim=-1) if p["score"] == "softmax" else flat.sigmoid()
    scores = rounded(scores, at["scores"])
    choice = scores if "bias" not in w else scores + w["bias"]
    if p["groups"] > 1:
        choice = _keep_best_groups(choice, p["groups"], p["top_groups"])
    ids = _top_k(choice, p["top_k"], at)
    weights = wide(scores.gather(1, ids))
    if p["renormalize"]:
        total = weights.sum(dim=-1, keepdim=True) + at["renormalize_eps"]
        weights = weights * (1.0 / total) if at["renormalize"] == "reciprocal" else weights / total
    weights = rounded(weights * p["scale"], at["weights"])
    return ids.view(*logits.shape[:-1], -1), weights.view(*logits.shape[:-1], -1)


def _keep_best_groups(choice: torch.Tensor, groups: int, top_groups: int) -> torch.Tensor:
    """choice [N, E] with -inf outside the `top_groups` groups whose two best scores add up to most."""
    by_group = choice.view(len(choice), groups, -1)
    group_scores = by_group.topk(2, dim=-1)[0].sum(dim=-1)
    kept = torch.topk(group_scores, k=top_groups, dim=-1, sorted=False)[1]
    mask = torch.zeros_like(group_scores, dtype=torch.bool).scatter_(1, kept, value=True)
    return by_group.masked_fill(~mask.unsqueeze(-1), float("-inf")).flatten(1)


def _top_k(choice: torch.Tensor, k: int, at: Mapping[str, Any]) -> torch.Tensor:
    if at["tie_break"] == "lowest_index":
        return torch.sort(choice, dim=-1, descending=True, stable=True)[1][:, :k]
    return torch.topk(choice, k, dim=-1, sorted=at["slots"] == "sorted")[1]
