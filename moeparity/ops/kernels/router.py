"""Kernel of `router`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F

from moeparity.numerics import cuda, orders
from moeparity.numerics.rounding import add, rounded, wide, working
from moeparity.numerics.summation import sum_axis
from moeparity.ops.router import AFTER, LOGSUMEXP, ROUNDED, SPARSEMIXER, START, TRITON

Weights = Mapping[str, torch.Tensor]
Settings = Mapping[str, Any]


def router(
    logits: torch.Tensor,
    replayed: torch.Tensor | None = None,
    replayed_weights: torch.Tensor | None = None,
    *,
    w: Weights,
    p: Settings,
    at: Settings,
) -> tuple[torch.Tensor, torch.Tensor]:
    """logits [B, T, E] -> ids int64 and weights, both [B, T, K].

    replayed: int64 [B, T, K], experts in any order that replace the router's own choice; they take the slots in which
    the router itself ranks them. A row of -1 replaces nothing. replayed_weights: [B, T, K], the weights of these
    experts, kept in their dtype.
    """
    flat = _operand(logits, p, at)
    scores = flat if _scored_last(p, at) else _scores(flat, p, at)
    ranked = _ranks(flat, scores, w, p, at)
    ids = best(_best_groups_only(ranked, p, at) if p["groups"] > 1 else ranked, p["top_k"], at)

    def own_weights() -> torch.Tensor:
        mixed = p["score"] == SPARSEMIXER
        return _mixed(flat, ids, p, at) if mixed else _weights(_chosen(scores, ranked, ids, w, at), p, at)

    has_route: torch.Tensor | None = None
    if replayed is not None:
        replayed = replayed.reshape(ids.shape)
        has_route = (replayed >= 0).all(dim=-1, keepdim=True)
        replayed = torch.where(has_route, replayed, ids)
        ids = _own_order(ids, replayed, ranked, at)
    if replayed is None or has_route is None or replayed_weights is None:
        weights = own_weights()
    else:
        weights = _of_expert(ids, replayed, replayed_weights.reshape(ids.shape))
        weights = weights if bool(has_route.all()) else torch.where(has_route, weights, own_weights())
    return ids.view(*logits.shape[:-1], -1), weights.view(*logits.shape[:-1], -1)


def _operand(logits: torch.Tensor, p: Settings, at: Settings) -> torch.Tensor:
    """logits [B, T, E] -> [N, E] in the dtype in which they are scored. torch's own softmax has a kernel for 16 bits,
    which computes in fp32 otherwise than its kernel for fp32.
    """
    flat = logits.reshape(-1, logits.shape[-1])
    if p.get("cap"):
        step = flat.to(working(flat.dtype, at["capped"]))
        flat = rounded(torch.tanh(step / p["cap"]) * p["cap"], at["capped"])
    native = p["score"] == SPARSEMIXER or (p["score"] == "softmax" and at.get("softmax") == orders.NATIVE)
    if native and logits.dtype == at["scores"]:
        return flat
    return flat.to(working(logits.dtype, at["scores"]))


def _weights(scores: torch.Tensor, p: Settings, at: Settings) -> torch.Tensor:
    """The routing weights from the chosen experts' scores [N, K], or from their logits if these are scored only now."""
    weights = wide(_scores(scores, p, at) if _scored_last(p, at) else scores)
    scale = p["scale"] if at.get("scaling", "weights") == "weights" else 1.0
    divided = p["renormalize"] and at.get("timing") != AFTER
    return rounded(_renormalised(weights, scale, at) if divided else weights * scale, at["weights"])


def _mixed(logits: torch.Tensor, ids: torch.Tensor, p: Settings, at: Settings) -> torch.Tensor:
    """sparsemixer's weights [N, K] of the experts `ids`, from logits [N, E]: in each slot a softmax of the experts that
    no earlier slot has and whose logit is not far below this one's, by a share of the larger magnitude.
    """
    remaining, weights = logits, []
    for expert in ids.unsqueeze(-1).unbind(-2):
        highest = remaining.gather(-1, expert)
        distance = rounded((highest - logits) / logits.abs().clamp(min=highest), at["scores"])
        near = remaining.masked_fill(distance > 2 * p["jitter"], float("-inf"))
        weights.append(rounded(torch.softmax(near, dim=-1), at["scores"]).gather(-1, expert))
        remaining = remaining.scatter(-1, expert, float("-inf"))
    return rounded(torch.cat(weights, dim=-1), at["weights"])


def _chosen(scores: torch.Tensor, ranked: torch.Tensor, ids: torch.Tensor, w: Weights, at: Settings) -> torch.Tensor:
    """The scores [N, K] of the experts `ids`, from which weights are made."""
    if "bias" not in w or at.get("chosen", "scores") == "scores":
        return scores.gather(1, ids)
    bias = wide(rounded(w["bias"], at["correction"]))[ids]
    return rounded(wide(ranked.gather(1, ids)) - bias, at["scores"])


def _own_order(own_ids: torch.Tensor, replayed: torch.Tensor, ranked: torch.Tensor, at: Settings) -> torch.Tensor:
    """Put the replayed experts of each token into the order in which the router ranks them; all are [N, K].

    A token whose replayed experts are those that the router chose itself keeps the router's own order (`own_ids`).
    """
    # Ascending, so that ties go by expert id here too. Groups that the router would drop do not matter any more.
    ascending = replayed.sort(dim=-1).values
    order = best(ranked.gather(1, ascending), replayed.shape[-1], at)
    same = (own_ids.sort(dim=-1).values == ascending).all(dim=-1, keepdim=True)
    # If nothing is forced, the router's own tensor is kept, strides included.
    return own_ids if bool(same.all()) else torch.where(same, own_ids, ascending.gather(1, order))


def _of_expert(ids: torch.Tensor, replayed: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The weights of `replayed`, reordered to `ids` (the same experts in other slots), all [N, K]."""
    slots = (ids.unsqueeze(-1) == replayed.unsqueeze(-2)).to(torch.int64).argmax(-1)
    return weights.gather(-1, slots)


def selection(logits: torch.Tensor, *, w: Weights, p: Settings, at: Settings) -> tuple[torch.Tensor, torch.Tensor]:
    """The values by which `router` ranks the experts, before and after groups are masked; logits, results: [B, T,
    E].
    """
    flat = _operand(logits, p, at)
    before = _ranks(flat, flat if _scored_last(p, at) else _scores(flat, p, at), w, p, at)
    after = _best_groups_only(before, p, at) if p["groups"] > 1 else before
    return before.view(logits.shape), after.view(logits.shape)


def ranks_logits(at: Settings) -> bool:
    """Whether experts are ranked by their logits, not by their scores."""
    return at.get("timing") == AFTER or at.get("rank_on") == "logits"


def _scored_last(p: Settings, at: Settings) -> bool:
    """Whether only the chosen experts are scored."""
    return bool(p.get("by_logits")) or at.get("timing") == AFTER or p["score"] == SPARSEMIXER


def _ranks(flat: torch.Tensor, scores: torch.Tensor, w: Weights, p: Settings, at: Settings) -> torch.Tensor:
    """The values by which experts are ranked before groups are chosen, [N, E]: of logits [N, E] or their scores."""
    return flat if p.get("ranks_logits") or ranks_logits(at) else _biased(scores, w, at)


def _scores(logits: torch.Tensor, p: Settings, at: Settings) -> torch.Tensor:
    """The scores of logits [N, E or K], in the dtype in which they are scored."""
    if at.get("normalizer") == LOGSUMEXP:
        x = rounded(logits, at["scores"])
        return (x - x.logsumexp(dim=-1, keepdim=True)).exp()
    return rounded(_softmax(logits, at) if p["score"] == "softmax" else _sigmoid(logits, at), at["scores"])


def _softmax(logits: torch.Tensor, at: Settings) -> torch.Tensor:
    if at["softmax"] == orders.NATIVE:
        return F.softmax(logits, dim=-1)
    powers = _exp(logits - logits.amax(dim=-1, keepdim=True), at)
    total = _sum(powers, at["denominator"])
    if at["softmax"] == "reciprocal":
        return powers * _quotient(torch.ones_like(total), total, at)
    return _quotient(powers, total, at)


def _sigmoid(logits: torch.Tensor, at: Settings) -> torch.Tensor:
    if at["sigmoid"] == "exp":
        grown = 1.0 + _exp(-logits, at)
        return _quotient(torch.ones_like(grown), grown, at)
    return 0.5 * _tanh(0.5 * logits, at) + 0.5 if at["sigmoid"] == "tanh" else logits.sigmoid()


def _exp(x: torch.Tensor, at: Settings) -> torch.Tensor:
    """exp as `math` names it; for fp64 it is torch's."""
    functions = {"cuda": cuda.expf, "cuda_fast": cuda.fast_expf, TRITON: cuda.triton_exp}
    return functions.get(at["math"], torch.exp)(x) if x.dtype == torch.float32 else x.exp()


def _quotient(a: torch.Tensor, b: torch.Tensor, at: Settings) -> torch.Tensor:
    """a / b; as Triton divides where `math` is Triton's, in fp32."""
    return cuda.div_full(a, b) if at.get("math") == TRITON and a.dtype == b.dtype == torch.float32 else a / b


def _tanh(x: torch.Tensor, at: Settings) -> torch.Tensor:
    functions = {"cuda": cuda.tanhf, "cuda_fast": cuda.fast_tanhf}
    return functions.get(at["math"], torch.tanh)(x) if x.dtype == torch.float32 else x.tanh()


def _sum(x: torch.Tensor, order: str, start: float | None = None) -> torch.Tensor:
    """The sum of each row of x [N, n], [N, 1]."""
    if order == orders.NATIVE:
        return x.sum(dim=-1, keepdim=True)
    return sum_axis(x, orders.parse(order), -1, accumulate=x.dtype, start=start).unsqueeze(-1)


def _biased(scores: torch.Tensor, w: Weights, at: Settings) -> torch.Tensor:
    """Scores, or logits, with the correction bias, [N, E]."""
    return add(scores, rounded(w["bias"], at["correction"]), at["choice"]) if "bias" in w else scores


def _best_groups_only(choice: torch.Tensor, p: Settings, at: Settings) -> torch.Tensor:
    """choice [N, E] with the mask's value outside the `top_groups` best groups."""
    by_group = choice.view(len(choice), p["groups"], -1)
    summed = {"top2_sum": 2, "max": 1, "topk_share_sum": p["top_k"] // p["top_groups"]}[at["group_score"]]
    group_scores = by_group.topk(summed, dim=-1)[0].sum(dim=-1)
    groups = best(group_scores, p["top_groups"], {**at, "slots": "unsorted"})
    mask = torch.zeros_like(group_scores, dtype=torch.bool).scatter_(1, groups, value=True)
    masked_score = 0.0 if at["group_mask"] == "zero" else float("-inf")
    return by_group.masked_fill(~mask.unsqueeze(-1), masked_score).flatten(1)


def best(choice: torch.Tensor, k: int, at: Settings) -> torch.Tensor:
    """The places of the k largest of choice [..., n] along the last axis, of equals as `tie_break` says."""
    if at["tie_break"] == "torch_topk":
        return torch.topk(choice, k, dim=-1, sorted=at.get("slots", "sorted") == "sorted")[1]
    if at["tie_break"] == "lowest_index":
        return torch.sort(choice, dim=-1, descending=True, stable=True)[1][..., :k]
    backwards = torch.sort(choice.flip(-1), dim=-1, descending=True, stable=True)[1][..., :k]
    return choice.shape[-1] - 1 - backwards


def _renormalised(weights: torch.Tensor, scale: float, at: Settings) -> torch.Tensor:
    """weights [N, K] divided by their sum, and scaled."""
    eps, order = at["renormalize_eps"], at["renormalize_order"]
    total = _sum(weights, order, start=eps if at["renormalize_eps_at"] == START else None)
    total = wide(rounded(total, at["total"])) if at["renormalize_eps_at"] == ROUNDED else total
    total = rounded(total if at["renormalize_eps_at"] == START else total + eps, at["total"])
    # A 16-bit sum is divided by in fp32, an fp64 one in fp64.
    total = wide(total)
    if at["renormalize"] in {"divide", "reciprocal"}:
        inverse = at["renormalize"] == "reciprocal"
        quotient = weights * _quotient(torch.ones_like(total), total, at) if inverse else _quotient(weights, total, at)
        return wide(rounded(quotient, at.get("quotient", quotient.dtype))) * scale
    if at["renormalize"] == "scale_first":
        return _quotient(weights.to(torch.promote_types(weights.dtype, total.dtype)) * scale, total, at)
    # torch turns a number divided by a tensor into a product with the reciprocal; with two tensors it divides.
    return weights * _quotient(torch.full_like(total, scale), total, at)
