"""The ops of a small MoE written from their definitions, each attribute a branch. Shares no code with moeparity.

The forms are those of transformers 5.23.0 with eager attention and the eager loop over experts; B sequences of T
tokens, H heads of width D over G key heads, E experts of which a token has K. `at` holds a node's attributes by
moeparity's names, dtypes as torch's; what is not there is as transformers does it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

At = Mapping[str, Any]
BF16, FP16, FP32, FP64 = torch.bfloat16, torch.float16, torch.float32, torch.float64
DTYPES = {"bf16": BF16, "fp16": FP16, "fp32": FP32, "fp64": FP64}


def wide(*dtypes: torch.dtype) -> torch.dtype:
    """What is computed in between: fp32, fp64 where one of them is."""
    return FP64 if FP64 in dtypes else FP32


def times(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """The product, computed wide and rounded once."""
    step = wide(a.dtype, b.dtype, dtype)
    return (a.to(step) * b.to(step)).to(dtype)


def plus(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """The sum, computed wide and rounded once."""
    step = wide(a.dtype, b.dtype, dtype)
    return (a.to(step) + b.to(step)).to(dtype)


def to_tf32(x: Tensor) -> Tensor:
    """An fp32 tensor with 10 bits of mantissa, ties away from zero."""
    return ((x.view(torch.int32) + 0x1000) & ~0x1FFF).view(FP32) if x.dtype == FP32 else x


def gemm(x: Tensor, weight: Tensor, bias: Tensor | None, at: At) -> Tensor:
    """x [.., K] times weight [N, K], as `inputs` and `output` say."""
    inputs, output = at["inputs"], at["output"]
    x, weight = x.to(inputs), weight.to(inputs)
    if at.get("tf32") == "yes":
        x, weight = to_tf32(x), to_tf32(weight)
    step = inputs if inputs == output else wide(inputs, output)
    return F.linear(x.to(step), weight.to(step), None if bias is None else bias.to(step)).to(output)


def rms_norm(x: Tensor, stored: Tensor, eps: float, at: At) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight."""
    weight: Tensor = (stored.float() + at.get("offset", 0.0)).to(at.get("weight", FP32))
    eps = eps if at.get("eps", "config") == "config" else at["eps"]
    rows = x.to(wide(x.dtype))
    square = at.get("square", FP32)
    squares = rows.to(wide(rows.dtype, square)).pow(2).to(square)
    rstd: Tensor = _inverse_root(_mean(squares.to(wide(squares.dtype)), at) + eps, at.get("rsqrt", "native"))
    form = at.get("association", "x_rstd_first") if at["normalized"] == FP32 else "x_rstd_first"
    if form == "weight_rstd_first":
        return times(rows, rstd * weight.float(), at["output"])
    if form == "weight_x_first":
        return times(rows * weight.float(), rstd, at["output"])
    return times(weight, (rows * rstd).to(at["normalized"]), at["output"])


def _mean(x: Tensor, at: At) -> Tensor:
    order, form = at.get("order", "native"), at.get("mean", "native")
    if order == "native" and form == "native":
        return x.mean(-1, keepdim=True)
    total = x.sum(-1, keepdim=True) if order == "native" else in_turn(x.unbind(-1), order, x.dtype).unsqueeze(-1)
    return total * (1 / x.shape[-1]) if form == "reciprocal" else total / x.shape[-1]


def in_turn(terms: tuple[Tensor, ...], order: str, dtype: torch.dtype) -> Tensor:
    """The sum of some tensors one after the other, each addition rounded: `sequential`, or from the last: `reverse`."""
    first, *rest = terms if order == "sequential" else terms[::-1]
    total = first.to(dtype)
    for term in rest:
        total = plus(total, term, dtype)
    return total


def _inverse_root(x: Tensor, form: str) -> Tensor:
    if form == "ieee" and x.dtype == FP32:
        return torch.rsqrt(x.double()).float()
    if form == "sqrt_div" and x.dtype == FP32:
        return 1 / torch.sqrt(x.double()).float()
    return torch.rsqrt(x)


def rotary(length: int, width: int, theta: float, at: At) -> tuple[Tensor, Tensor]:
    """cos and sin [T, width], both halves alike."""
    step = wide(at["output"])
    inverse = 1 / theta ** (torch.arange(0, width, 2, dtype=step) / width)
    angles = torch.arange(length).to(step)[:, None] * inverse
    angles = torch.cat((angles, angles), -1)
    return angles.cos().to(at["output"]), angles.sin().to(at["output"])


def rope(x: Tensor, cos: Tensor, sin: Tensor, at: At) -> Tensor:
    """x [B, T, heads, D] with its first columns turned -> [B, heads, T, D]."""
    x, width = x.transpose(1, 2), cos.shape[-1]
    turned, rest = x[..., :width], x[..., width:]
    half = torch.cat((-turned[..., width // 2 :], turned[..., : width // 2]), -1)
    out = plus(times(turned, cos, at["products"]), times(half, sin, at["products"]), at["output"])
    return torch.cat((out, rest.to(at["output"])), -1) if rest.shape[-1] else out


def attention(q: Tensor, k: Tensor, v: Tensor, at: At) -> Tensor:
    """q [B, H, T, D], k [B, G, T, D], v [B, T, G, D] -> [B, T, H * D], causal."""
    v = v.transpose(1, 2)
    if at.get("kv_layout") == "cached":
        k, v = k.contiguous(), v.contiguous()
    groups, scale = q.shape[1] // k.shape[1], q.shape[-1] ** -0.5
    if at.get("implementation") == "sdpa":
        q, k, v = _alike(q, k, v)
        out = F.scaled_dot_product_attention(q, k, v, scale=scale, is_causal=True, enable_gqa=groups > 1)
        return out.to(at["output"]).transpose(1, 2).contiguous().flatten(2)
    k, v = _each_head(k, groups), _each_head(v, groups)
    dtype, length = at["scores"], q.shape[2]
    scores = _matmul(q, k.transpose(2, 3), dtype, at) * scale
    hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
    scores = scores + torch.zeros(length, length, dtype=dtype).masked_fill_(hidden, torch.finfo(dtype).min)
    chances = _softmax(scores.to(wide(dtype, at["probabilities"])), at.get("softmax", "native"))
    out = _matmul(chances.to(at["probabilities"]), v, at["output"], at)
    return out.transpose(1, 2).contiguous().flatten(2)


def _alike(*tensors: Tensor) -> tuple[Tensor, ...]:
    common = max((x.dtype for x in tensors), key=lambda dtype: dtype.itemsize)
    return tuple(x.to(common) for x in tensors)


def _each_head(x: Tensor, times_: int) -> Tensor:
    b, g, t, d = x.shape
    return x if times_ == 1 else x[:, :, None].expand(b, g, times_, t, d).reshape(b, g * times_, t, d)


def _matmul(a: Tensor, b: Tensor, dtype: torch.dtype, at: At) -> Tensor:
    if at.get("tf32") == "yes":
        a, b = to_tf32(a), to_tf32(b)
    step = dtype if a.dtype == b.dtype == dtype else wide(a.dtype, b.dtype, dtype)
    return torch.matmul(a.to(step), b.to(step)).to(dtype)


def _softmax(x: Tensor, form: str) -> Tensor:
    if form == "native":
        return F.softmax(x, dim=-1)
    powers = (x - x.amax(-1, keepdim=True)).double().exp().to(x.dtype)
    total = powers.sum(-1, keepdim=True)
    return powers / total if form == "divide" else powers * (1 / total)


def router(logits: Tensor, bias: Tensor | None, c: Mapping[str, Any], at: At) -> tuple[Tensor, Tensor]:
    """logits [B, T, E] -> ids and weights [B, T, K]; c holds top_k, score, renormalize, groups, top_groups, scale."""
    flat = logits.reshape(-1, logits.shape[-1]).to(wide(logits.dtype, at["scores"]))
    late = at.get("timing") == "after_topk"
    scores = flat if late else _scores(flat, c["score"], at)
    ranked = flat if late or at.get("rank_on") == "logits" else scores
    if bias is not None:
        ranked = plus(scores, bias.to(at.get("correction", FP32)), at.get("choice", FP32))
    ids = _chosen(_within_groups(ranked, c, at), c["top_k"], at)
    of_ids = scores.gather(1, ids)
    weights = _scores(of_ids, c["score"], at) if late else of_ids
    weights = weights.to(wide(weights.dtype))
    weights = _shared_out(weights, c["scale"], at) if c["renormalize"] and not late else weights * c["scale"]
    shape = (*logits.shape[:-1], c["top_k"])
    return ids.view(shape), weights.to(at["weights"]).view(shape)


def _scores(x: Tensor, score: str, at: At) -> Tensor:
    if score == "softmax":
        form = at.get("softmax", "native")
        powers = (x - x.amax(-1, keepdim=True)).exp()
        total = powers.sum(-1, keepdim=True)
        by_form = {"native": F.softmax(x, dim=-1), "divide": powers / total, "reciprocal": powers * (1 / total)}
    else:
        form = at.get("sigmoid", "native")
        by_form = {"native": x.sigmoid(), "exp": 1 / (1 + (-x).exp()), "tanh": 0.5 * (0.5 * x).tanh() + 0.5}
    return by_form[form].to(at["scores"])


def _within_groups(x: Tensor, c: Mapping[str, Any], at: At) -> Tensor:
    if c["groups"] == 1:
        return x
    by_group = x.view(len(x), c["groups"], -1)
    best = {"top2_sum": 2, "max": 1, "topk_share_sum": c["top_k"] // c["top_groups"]}[at.get("group_score", "top2_sum")]
    best_groups = by_group.topk(best, -1)[0].sum(-1).topk(c["top_groups"], -1, sorted=False)[1]
    mask = torch.zeros(len(x), c["groups"], dtype=torch.bool).scatter_(1, best_groups, value=True)
    return by_group.masked_fill(~mask.unsqueeze(-1), float("-inf")).flatten(1)


def _chosen(ranked: Tensor, k: int, at: At) -> Tensor:
    ties = at.get("tie_break", "torch_topk")
    if ties == "torch_topk":
        return torch.topk(ranked, k, dim=-1, sorted=at.get("slots", "sorted") == "sorted")[1]
    if ties == "lowest_index":
        return ranked.sort(dim=-1, descending=True, stable=True)[1][:, :k]
    return ranked.shape[-1] - 1 - ranked.flip(-1).sort(dim=-1, descending=True, stable=True)[1][:, :k]


def _shared_out(weights: Tensor, scale: float, at: At) -> Tensor:
    order, form = at.get("renormalize_order", "native"), at.get("renormalize", "divide")
    if order == "native":
        total = weights.sum(-1, keepdim=True)
    else:
        total = in_turn(weights.unbind(-1), order, weights.dtype).unsqueeze(-1)
    rounded: Tensor = (total + at.get("renormalize_eps", 0.0)).to(at.get("total", FP32))
    total = rounded.to(wide(rounded.dtype))
    if form == "scale_first":
        return weights * scale / total
    if form == "scale_over_sum":
        return weights * (torch.full_like(total, scale) / total)
    quotient = weights / total if form == "divide" else weights * (1 / total)
    stored: Tensor = quotient.to(at.get("quotient", quotient.dtype))
    return stored.to(wide(quotient.dtype)) * scale


def experts(x: Tensor, ids: Tensor, gate_up: Tensor, down: Tensor, at: At) -> Tensor:
    """x [B, T, hidden], ids [B, T, K] -> the output of each token's experts, [B, T, K, hidden]."""
    flat, picked = x.reshape(-1, x.shape[-1]), ids.reshape(-1, ids.shape[-1])
    rows = torch.empty(*picked.shape, x.shape[-1], dtype=at["output"])
    projections = {"inputs": at["projections"], "output": at["projections"], "tf32": at.get("tf32")}
    last = {"inputs": at["product"], "output": at["output"], "tf32": at.get("tf32")}
    for expert in range(len(gate_up)):
        slot, token = torch.where(picked.t() == expert)
        if not len(token):
            continue
        if at.get("gate_up") == "split":
            gate, up = (gemm(flat[token], half, None, projections) for half in gate_up[expert].chunk(2))
        else:
            gate, up = gemm(flat[token], gate_up[expert], None, projections).chunk(2, -1)
        rows[token, slot] = gemm(swiglu(gate, up, at["activation"], at["product"]), down[expert], None, last)
    return rows.view(*ids.shape, -1)


def swiglu(gate: Tensor, up: Tensor, activation: torch.dtype, output: torch.dtype) -> Tensor:
    """silu(gate), rounded, times up, rounded."""
    gate = gate if gate.dtype == activation else gate.to(wide(gate.dtype, activation))
    return times(F.silu(gate).to(activation), up, output)


def combine(rows: Tensor, ids: Tensor, weights: Tensor, at: At) -> Tensor:
    """rows [B, T, K, hidden] with weights [B, T, K], added up -> [B, T, hidden]."""
    if at["leaves"] == "expert":
        by_expert = ids.argsort(-1)
        rows = rows.gather(-2, by_expert.unsqueeze(-1).expand_as(rows))
        weights = weights.gather(-1, by_expert)
    weighted = times(rows, weights.unsqueeze(-1), at["weighted"])
    if at["order"] == "native" and at["accumulate"] == FP32:
        summed = weighted if weighted.dtype == at["output"] else weighted.float()
        total = summed.flatten(0, 1).sum(1).view(*weighted.shape[:2], -1)
    else:
        order = "sequential" if at["order"] == "native" else at["order"]
        total = in_turn(weighted.unbind(-2), order, at["accumulate"])
    return total.to(at["output"])


def sigmoid_gate(gate: Tensor, x: Tensor, at: At) -> Tensor:
    """sigmoid(gate) * x: how much of a shared expert is used."""
    step = gate.dtype if gate.dtype == at["activation"] else wide(gate.dtype, at["activation"])
    return times(torch.sigmoid(gate.to(step)).to(at["activation"]), x, at["output"])
