"""The ops of small transformers written as a user would, in plain torch: functions to put in place of nodes.

Without a keyword each has the bits of transformers 5.23.0 with eager attention and the eager loop over experts; the
keywords are what is planted. B sequences of T tokens, H heads of width D over G key heads, E experts of which a token
has K. `by` multiplies what a function returns. Free of moeparity.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def tail(node: Any) -> str:
    """The last part of the name of the node that a function closes."""
    return str(node.name).rpartition(".")[2]


def out(x: Tensor, by: float) -> Tensor:
    """x, multiplied and rounded where that is asked for."""
    return x if by == 1.0 else (x * by).to(x.dtype)


def norm(
    x: Tensor,
    *,
    node: Any,
    name: str = "",
    eps: float | None = None,
    offset: float = 0.0,
    late: bool | None = None,
    square: str = "float32",
    centred: bool = False,
    by: float = 1.0,
) -> Tensor:
    """RMSNorm; `late` casts after the weight is multiplied, as gpt-oss does, `centred` takes the mean off first."""
    name = name or tail(node)
    weight, params = node.weights[f"{name}.weight"], node.params[name]
    late = node.config["model_type"] == "gpt_oss" if late is None else late
    rows = x.float()
    rows = rows - rows.mean(-1, keepdim=True) if centred else rows
    squares = rows.pow(2).to(getattr(torch, square)).float()
    rows = rows * torch.rsqrt(squares.mean(-1, keepdim=True) + (params["eps"] if eps is None else eps))
    weight = weight.float() + offset
    y = (weight * (rows if late else rows.to(x.dtype).float())).to(x.dtype)
    y = out(y, by)
    return y if params["heads"] is None else y.view(*y.shape[:-1], params["heads"], -1)


def linear(
    x: Tensor, *, node: Any, name: str = "", parts: int = 1, split: str = "float32", roll: int = 0, by: float = 1.0
) -> Tensor:
    """A GEMM; its K cut into equal parts whose results are rounded to `split` and added; outputs rolled."""
    name = name or tail(node)
    weight, bias = node.weights[f"{name}.weight"], node.weights.get(f"{name}.bias")
    if parts == 1:
        y = F.linear(x, weight, bias)
    else:
        dtype = getattr(torch, split)
        pairs = zip(x.chunk(parts, -1), weight.chunk(parts, -1), strict=True)
        sums = [F.linear(a.contiguous().float(), b.contiguous().float()).to(dtype) for a, b in pairs]
        total = sums[0]
        for term in sums[1:]:
            total = (total.float() + term.float()).to(dtype)
        y = (total if bias is None else total + bias.to(dtype)).to(x.dtype)
    y = out(y.roll(roll, -1) if roll else y, by)
    heads = node.params[name].get("heads")
    return y if heads is None else y.view(*y.shape[:-1], heads, -1)


def head(x: Tensor, *, node: Any, wide: bool = False, cap: float = 0.0, parts: int = 1, by: float = 1.0) -> Tensor:
    """Logits; `wide` leaves them in fp32, `cap` bounds them by a tanh."""
    weight = node.weights["lm_head.weight"]
    if parts > 1:
        return linear(x, node=node, name="lm_head", parts=parts)
    y = F.linear(x.float(), weight.float()) if wide else F.linear(x, weight)
    return out((cap * torch.tanh(y / cap)).to(y.dtype) if cap else y, by)


def embed(tokens: Tensor, *, node: Any, by: float = 1.0) -> Tensor:
    """Rows of the embedding."""
    return out(F.embedding(tokens, node.weights["embed.weight"]), by)


def rotary(
    positions: Tensor,
    *,
    node: Any,
    theta: float | None = None,
    stretch: float = 1.0,
    shift: int = 0,
    wide: bool = False,
) -> tuple[Tensor, Tensor]:
    """cos and sin [B, T, dim] of plain rotary frequencies; positions divided by `stretch`, or moved by `shift`."""
    dim, rope = node.params["rotary"]["dim"], node.params["rotary"]["rope"]
    theta = rope["rope_theta"] if theta is None else theta
    inverse = 1.0 / (theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim))
    angles = (positions + shift)[..., None].float() / stretch * inverse
    angles = torch.cat((angles, angles), -1)
    dtype = torch.float32 if wide else node.dtype
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rope(
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    *,
    node: Any,
    wide: bool = False,
    sign: float = 1.0,
    keys: bool = True,
) -> tuple[Tensor, Tensor]:
    """Queries and keys turned by halves, head by head; `keys` False leaves the keys as they are."""
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1) * sign

    def turned(x: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        swapped = torch.cat((-x[..., half:], x[..., :half]), -1)
        if wide:
            return (x.float() * cos.float() + swapped.float() * sin.float()).to(x.dtype)
        return x * cos + swapped * sin

    q, k = q.transpose(1, 2), k.transpose(1, 2)
    return turned(q), turned(k) if keys else k.clone()


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor,
    *,
    node: Any,
    scores: str = "",
    probabilities: str = "",
    divide: bool = False,
    scale: float = 1.0,
    flip: bool = False,
    ahead: int = 0,
    by: float = 1.0,
) -> Tensor:
    """Eager causal attention over the window of its layer; `ahead` more tokens are seen, `flip` mixes up key heads."""
    repeats, length = q.shape[1] // k.shape[1], q.shape[2]
    k = (k.flip(1) if flip else k).repeat_interleave(repeats, 1)
    v = v.repeat_interleave(repeats, 1)
    window = node.params["attend"].get("window")
    visible = torch.ones(1, 1, length, length, dtype=torch.bool).tril(ahead)
    visible = visible if window is None else visible.triu(1 - window)
    visible = visible if bool(mask.all()) else visible & mask[:, None, None, :]
    dtype = getattr(torch, scores) if scores else q.dtype
    x = torch.matmul(q.to(dtype), k.to(dtype).transpose(2, 3)) * (q.shape[-1] ** -0.5 * scale)
    x = x + torch.zeros_like(visible, dtype=dtype).masked_fill(~visible, torch.finfo(dtype).min)
    if divide:
        powers = (x.float() - x.float().amax(-1, keepdim=True)).double().exp().float()
        p = powers / powers.sum(-1, keepdim=True)
    else:
        p = F.softmax(x, -1, dtype=torch.float32)
    step = getattr(torch, probabilities) if probabilities else q.dtype
    y = torch.matmul(p.to(step), v.to(step)).to(q.dtype)
    return out(y.transpose(1, 2).contiguous().flatten(2), by)


def router(
    logits: Tensor,
    *,
    node: Any,
    scores: str = "float32",
    eps: float = 0.0,
    weights: str = "",
    total: str = "float32",
    reciprocal: bool = False,
    after: bool = False,
    plain: bool = False,
    temperature: float = 1.0,
    drop: bool = False,
) -> tuple[Tensor, Tensor]:
    """ids and weights [B, T, K] of a softmax router; `plain` never renormalises, `drop` empties the last slot."""
    params = node.params["router"]
    flat = logits.reshape(-1, logits.shape[-1]).float() * temperature
    ranked = flat if after else F.softmax(flat, -1).to(getattr(torch, scores))
    best, ids = torch.topk(ranked, params["top_k"], -1)
    best = F.softmax(best, -1).to(getattr(torch, scores)).float() if after else best.float()
    if params["renormalize"] and not plain and not after:
        sums = (best.sum(-1, keepdim=True) + eps).to(getattr(torch, total)).float()
        best = best * (1.0 / sums) if reciprocal else best / sums
    if drop:
        best = torch.cat((best[:, :-1], torch.zeros_like(best[:, -1:])), -1)
    wide = node.config["model_type"] == "mixtral"
    dtype = getattr(torch, weights) if weights else torch.float32 if wide else logits.dtype
    shape = (*logits.shape[:-1], -1)
    return ids.view(shape), best.to(dtype).view(shape)


def glu(gate: Tensor, up: Tensor, *, wide: bool = False, gelu: bool = False, product: str = "") -> Tensor:
    """silu(gate) * up; `wide` keeps silu in fp32, `product` what is rounded to behind it."""
    act = F.gelu if gelu else F.silu
    y = act(gate.float()) * up.float() if wide else act(gate) * up
    if product and not wide:
        y = act(gate).float() * up.float()
    return y.to(getattr(torch, product) if product else gate.dtype)


def swiglu(gate: Tensor, up: Tensor, *, node: Any, by: float = 1.0, **settings: Any) -> Tensor:
    """The activation of a dense or shared MLP."""
    return out(glu(gate, up, **settings), by)


def experts(
    x: Tensor,
    ids: Tensor,
    *_: Tensor,
    node: Any,
    swap: bool = False,
    step: int = 0,
    halves: bool = False,
    rare: int = -1,
    rare_by: float = 1.0,
    rare_is: float | None = None,
    by: float = 1.0,
    **settings: Any,
) -> Tensor:
    """Rows [B, T, K, H], expert by expert; `step` takes another expert's down projection.

    What the expert `rare` returns is multiplied by `rare_by`; or one channel of its first row is `rare_is`.
    """
    first, second = node.weights["experts.gate_up"], node.weights["experts.down"]
    flat, chosen = x.reshape(-1, x.shape[-1]), ids.reshape(-1, ids.shape[-1])
    rows = torch.empty(*chosen.shape, x.shape[-1], dtype=x.dtype)
    for expert in sorted(set(chosen.flatten().tolist())):
        slots, tokens = torch.where(chosen.t() == expert)
        if halves:
            gate, up = (F.linear(flat[tokens], half) for half in first[expert].chunk(2, 0))
        else:
            gate, up = F.linear(flat[tokens], first[expert]).chunk(2, -1)
        hidden = glu(up, gate, **settings) if swap else glu(gate, up, **settings)
        down = second[(expert + step) % len(second)]
        y = F.linear(hidden, down.to(hidden.dtype)).to(x.dtype)
        if expert == rare:
            y = out(y, rare_by)
            if rare_is is not None:
                y[0, 3] = rare_is
        rows[tokens, slots] = y
    return out(rows, by).view(*ids.shape, x.shape[-1])


def combine(
    rows: Tensor,
    ids: Tensor,
    weights: Tensor,
    *_: Tensor,
    node: Any,
    weighted: str = "",
    accumulate: str = "",
    reverse: bool = False,
    by_slot: bool = False,
    by: float = 1.0,
) -> Tensor:
    """The weighted rows added by ascending expert, each sum rounded to the model's dtype, or to `accumulate`."""
    order = torch.arange(ids.shape[-1]).expand_as(ids) if by_slot else ids.argsort(-1)
    order = order.flip(-1) if reverse else order
    dtype = getattr(torch, accumulate) if accumulate else rows.dtype
    each = getattr(torch, weighted) if weighted else rows.dtype
    terms = (rows.float() * weights.unsqueeze(-1).float()).to(each)
    terms = terms.gather(-2, order.unsqueeze(-1).expand_as(terms))
    total = torch.zeros(*ids.shape[:-1], rows.shape[-1], dtype=dtype)
    for term in terms.unbind(-2):
        total = (total.float() + term.float()).to(dtype)
    return out(total.to(rows.dtype), by)


def add(a: Tensor, b: Tensor, *, node: Any, second: float = 1.0, by: float = 1.0) -> Tensor:
    """The residual sum; its second term multiplied first."""
    return out(a + out(b, second), by)
