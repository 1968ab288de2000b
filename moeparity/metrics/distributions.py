"""How two distributions over the whole vocabulary differ, for logs and sides that have logits."""

from __future__ import annotations

import math

import torch
from torch import Tensor

TOP = 10
"""The number of likeliest ids of which `top_jaccard` measures the overlap."""
# From here on log((1 + exp(g)) / 2) is g - log 2 to the last bit.
_FAR = 40.0


def divergences(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Jensen-Shannon divergence in nats, and total variation, of each pair of rows; both fp64 [N].

    x, y: log-softmaxes fp64 [N, V], finite. With g = x - y and m the mean of both distributions, log(p/m) = g - L and
    log(q/m) = -L, where L = log1p(expm1(g) / 2). This is exactly 0 for equal rows, and keeps all digits of small
    differences.
    """
    p, q, gap = x.exp(), y.exp(), x - y
    half = torch.where(gap > _FAR, gap - math.log(2), gap.clamp(max=_FAR).expm1().div_(2).log1p_())
    jsd = ((p * gap).sum(-1) - ((p + q) * half).sum(-1)) / 2
    return jsd, (p - q).abs_().sum(-1) / 2


def top_jaccard(x: Tensor, y: Tensor, k: int = TOP) -> Tensor:
    """Overlap of the k largest entries of each pair of rows [N, V]: |A and B| / |A or B|, fp64 [N]; k at most V."""
    k = min(k, x.shape[-1])
    a, b = x.topk(k).indices, y.topk(k).indices
    common = (a.unsqueeze(-1) == b.unsqueeze(-2)).any(-1).sum(-1)
    return common.double() / (2 * k - common)


def rank_change(x: Tensor, y: Tensor, tokens: Tensor) -> Tensor:
    """How many ranks the tokens [N] move between x and y, both [N, V]; fp64 [N], at least 0.

    The rank is the number of larger logits, so tied ids share a rank.
    """
    ranks = [(logits > logits.gather(-1, tokens.unsqueeze(-1))).sum(-1) for logits in (x, y)]
    return (ranks[0] - ranks[1]).abs().double()


def vocabulary_metrics(reference: Tensor, candidate: Tensor, tokens: Tensor) -> Tensor:
    """fp64 [4, N] from finite logits [N, V]: JSD, TV, top-10 Jaccard, and rank change of the tokens [N]."""
    x, y = (logits.double() for logits in (reference, candidate))
    ranked = torch.stack([top_jaccard(x, y), rank_change(x, y, tokens)])
    return torch.cat([torch.stack(divergences(x.log_softmax(-1), y.log_softmax(-1))), ranked])
