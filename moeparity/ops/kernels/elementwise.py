"""Kernels of `embedding`, `add`, `shared_add`, `swiglu`, `sigmoid_gate`, `clamp`, and of ops that compute nothing."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from moeparity.numerics import rounding
from moeparity.numerics.dtypes import UNROUNDED
from moeparity.numerics.fma import fma
from moeparity.numerics.orders import NATIVE
from moeparity.ops.elementwise import NONE, SOFTPLUS_OF
from moeparity.ops.kernels import glu
from moeparity.ops.kernels.exponentials import sigmoid as logistic
from moeparity.ops.kernels.exponentials import silu as activation
from moeparity.ops.kernels.exponentials import softplus
from moeparity.ops.kernels.pieces import each, gathered, parts
from moeparity.ops.placement import APART, HANDS_ON, cut
from moeparity.ops.router import SHARED_SCALINGS


def embedding(
    tokens: torch.Tensor, *, w: Mapping[str, torch.Tensor], p: Mapping[str, Any], at: Mapping[str, Any]
) -> torch.Tensor:
    """tokens [B, T] int64 -> [B, T, H]."""
    row = F.embedding(tokens, w["weight"])
    # A vocabulary that is cut over ranks is looked up on each, with zeros for missing rows, and summed; so -0 becomes
    # +0.
    return rounding.rounded(row + 0.0 if cut(at) > 1 else row, at["output"])


def add(
    a: torch.Tensor, b: torch.Tensor, *, w: Mapping[str, torch.Tensor], p: Mapping[str, Any], at: Mapping[str, Any]
) -> torch.Tensor:
    """a + b of equal shapes. If one is in partial sums [B, ranks, T, H], the first rank adds the other one. A value
    that a pipeline stage sends to the next one is rounded on the way.
    """
    border = at.get("border", UNROUNDED)
    if border == UNROUNDED:
        return _added(a, b, at["output"])
    if at[HANDS_ON] == APART:
        return _added(_sent(a, border), _sent(b, border), at["output"])
    return _sent(_added(a, b, at["output"]), border)


def _sent(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return rounding.rounded(rounding.rounded(x, dtype), x.dtype)


def _added(a: torch.Tensor, b: torch.Tensor, output: torch.dtype) -> torch.Tensor:
    if a.dim() == b.dim():
        return rounding.add(a, b, output)
    partial, whole = (a, b) if a.dim() > b.dim() else (b, a)
    first, others = partial[:, :1], partial[:, 1:]
    return torch.cat((rounding.add(first, whole.unsqueeze(1), output), rounding.rounded(others, output)), 1)


def shared_add(
    routed: torch.Tensor,
    shared: torch.Tensor | None,
    *,
    w: Mapping[str, torch.Tensor],
    p: Mapping[str, Any],
    at: Mapping[str, Any],
) -> torch.Tensor:
    """Adds the shared expert's output to that of the routed experts: each [B, T, H], or in partial sums as in `add`.
    `shared` is None if `combine` has added it already.
    """
    if shared is None:
        return rounding.rounded(routed, at["output"])
    if at["scaling"] == "shared_fma" and routed.dim() == shared.dim():
        scale = torch.tensor(p["scale"], dtype=rounding.wide(routed).dtype, device=routed.device)
        return rounding.rounded(fma(routed, scale, shared), at["output"])
    if at["scaling"] in SHARED_SCALINGS:
        routed = rounding.wide(routed) * p["scale"]
    return _added(routed, shared, at["output"])


def swiglu(
    gate: torch.Tensor, up: torch.Tensor, *, w: Mapping[str, torch.Tensor], p: Mapping[str, Any], at: Mapping[str, Any]
) -> torch.Tensor:
    """silu(gate) * up of equal shapes."""
    # A step may come as a copy of its rows, which lie close.
    gate = F.pad(gate, (0, 1))[..., :-1] if p.get("halves") else gate
    pieces = cut(at)
    halves = zip(parts(gate, pieces, -1), parts(up, pieces, -1), strict=True)
    form = {"activation": at["activation"], "output": at["output"], "logistic": at.get("logistic", NATIVE)}
    return gathered(each(partial(glu.swiglu, **form), halves, pieces), pieces)


def silu(
    x: torch.Tensor, *, w: Mapping[str, torch.Tensor], p: Mapping[str, Any], at: Mapping[str, Any]
) -> torch.Tensor:
    """The sigmoid-weighted x, of any shape."""
    step = x if x.dtype == at["output"] else rounding.wide(x)
    return rounding.rounded(activation(step, at.get("logistic", NATIVE)), at["output"])


def relu2(
    x: torch.Tensor, *, w: Mapping[str, torch.Tensor], p: Mapping[str, Any], at: Mapping[str, Any]
) -> torch.Tensor:
    """The square of what of x is above 0, of any shape."""
    return glu.relu2(x, at["output"])


def sigmoid_gate(
    gate: torch.Tensor, x: torch.Tensor, *, w: Mapping[str, torch.Tensor], p: Mapping[str, Any], at: Mapping[str, Any]
) -> torch.Tensor:
    """The function of gate, times x; gate [B, T, 1], x [B, T, H] or in partial sums [B, ranks, T, H]; or gate [B, T,
    heads] or [B, T, heads, D] and x [B, T, heads * D].
    """
    gate = gate.flatten(2) if gate.dim() > x.dim() else gate
    gate = gate if gate.dim() == x.dim() else gate.unsqueeze(1)
    share = gate if p.get("function") == NONE else _share(gate, p, at)
    if gate.shape[-1] in (1, x.shape[-1]):
        return rounding.product(share, x, at["output"])
    by_head = x.reshape(*x.shape[:-1], gate.shape[-1], -1)
    return rounding.product(share.unsqueeze(-1), by_head, at["output"]).flatten(-2)


def _share(gate: torch.Tensor, p: Mapping[str, Any], at: Mapping[str, Any]) -> torch.Tensor:
    """The sigmoid or softplus of a gate, of any shape."""
    if p.get("function") == SOFTPLUS_OF:
        return rounding.rounded(softplus(rounding.wide(gate), at["softplus"]), at["activation"])
    step = gate.dtype if gate.dtype == at["activation"] else rounding.working(gate.dtype, at["activation"])
    return rounding.rounded(logistic(gate.to(step), at.get("logistic", NATIVE)), at["activation"])


def scale(
    x: torch.Tensor, *, w: Mapping[str, torch.Tensor], p: Mapping[str, Any], at: Mapping[str, Any]
) -> torch.Tensor:
    """x of any shape, times the factor, over the divisor; each in fp32, or in fp64 where x or the output are fp64."""
    step = x.to(rounding.working(x.dtype, at["output"]))
    step = step if p["factor"] == 1.0 else step * p["factor"]
    return rounding.rounded(step if p["divisor"] == 1.0 else step / p["divisor"], at["output"])


def clamp(
    x: torch.Tensor, *, w: Mapping[str, torch.Tensor], p: Mapping[str, Any], at: Mapping[str, Any]
) -> torch.Tensor:
    """x of any shape, clamped to [-limit, limit]."""
    return rounding.rounded(x, at["output"]).clamp(-p["limit"], p["limit"])


def split(
    x: torch.Tensor, *, w: Mapping[str, torch.Tensor], p: Mapping[str, Any], at: Mapping[str, Any]
) -> tuple[torch.Tensor, ...]:
    """Views of the last axis, one per part, some of them in heads: [.., heads, width of one]."""
    heads, views = p.get("heads") or {}, torch.split(x, list(p["parts"].values()), dim=-1)
    of_parts = zip(p["parts"], views, strict=True)
    return tuple(x.view(*x.shape[:-1], heads[part], -1) if part in heads else x for part, x in of_parts)


def join(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor | None = None,
    *,
    w: Mapping[str, torch.Tensor],
    p: Mapping[str, Any],
    at: Mapping[str, Any],
) -> torch.Tensor:
    """a, b, c [B, T, ..] -> [B, T, all their numbers]."""
    return torch.cat([x.flatten(2) for x in (a, b, c) if x is not None], -1)


def mask_padding(
    x: torch.Tensor, mask: torch.Tensor, *, w: Mapping[str, torch.Tensor], p: Mapping[str, Any], at: Mapping[str, Any]
) -> torch.Tensor:
    """x [B, T, H] times the mask [B, T]: a zero at padding keeps its number's sign."""
    return (x * mask[:, :, None]).to(x.dtype)
