"""Kernel of `gated_delta`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from moeparity.numerics import rounding
from moeparity.numerics.fma import fma
from moeparity.numerics.orders import NATIVE
from moeparity.ops.gated_delta import BEHIND, CHUNKS, FMA, OVER, RECIPROCAL, RSQRT
from moeparity.ops.kernels.delta_chunks import Read, Result, added, in_chunks
from moeparity.ops.kernels.exponentials import functions_of, sigmoid, softplus


def gated_delta(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    w: Mapping[str, torch.Tensor],
    p: Mapping[str, Any],
    at: Mapping[str, Any],
    state: torch.Tensor | None = None,
    ends: Sequence[int] = (),
) -> tuple[torch.Tensor, ...]:
    """q, k [B, T, Hk * Dk], v [B, T, Hv * Dv], a, b [B, T, Hv] or [B, T, Hk, Hv / Hk], of channels a [B, T, Hv * Dk]
    -> [B, T, Hv * Dv], then for each of `ends` the state [B, Hv, Dk, Dv] behind that token, as `state` is the one
    before the first (None: zeros).
    """
    a, b = a.flatten(2), _apart(b) if b.dim() > 3 and b.shape[-1] == 1 else b.flatten(2)
    beta = rounding.rounded(
        sigmoid(b if b.dtype == at["beta"] else rounding.wide(b), at.get("logistic", NATIVE)), at["beta"]
    )
    wide_a, log_rate = rounding.wide(a), rounding.wide(w["a_log"]).flatten()
    if at["decay"] == torch.float64:
        wide_a, log_rate = wide_a.double(), log_rate.double()
    functions = functions_of(at["functions"], log_rate.dtype)
    steps = (wide_a + w["dt_bias"]).view(*a.shape[:2], p["value_heads"], -1)
    rate = functions.exp(log_rate).unsqueeze(-1)
    bound = p.get("bound")
    if bound is None:
        decay = -rate * softplus(steps, at["softplus"], functions)
    else:
        decay = bound * sigmoid(rate * steps, at.get("logistic", NATIVE))
    decay = rounding.rounded(decay, at["decay"])
    read = _read(q, k, v, beta, decay, p, at, state)
    if at["form"] == CHUNKS:
        output, states = in_chunks(read, at, ends, channels=p["channels"])
    else:
        output, states = _by_token(read, at, ends)
    return rounding.rounded(output.transpose(1, 2).contiguous(), at["output"]).flatten(2), *states


def _apart(b: torch.Tensor) -> torch.Tensor:
    """b [B, T, H, 1] as [B, T, H] with a gap after each number in memory.

    In transformers b is such a view too: its projection gives b and a in turn. torch computes the sigmoid of fp32
    numbers with gaps one by one instead of in vectors, and the last bit may differ.
    """
    return torch.cat((b, b), -1)[..., 0]


def _read(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    beta: torch.Tensor,
    decay: torch.Tensor,
    p: Mapping[str, Any],
    at: Mapping[str, Any],
    state: torch.Tensor | None,
) -> Read:
    served = p["value_heads"] // p["key_heads"]
    # A step of a schedule may come as part of a larger value; torch's fp32 sums go by where a convolution leaves it.
    q, k, v = (x.transpose(1, 2).clone(memory_format=torch.contiguous_format).transpose(1, 2) for x in (q, k, v))
    q, k = (x.reshape(*x.shape[:2], p["key_heads"], -1) for x in (q, k))
    # Repeated once they would be a copy, whose strides give torch's fp32 sum of squares another order.
    q, k = (x.repeat_interleave(served, 2) if served > 1 else x for x in (q, k))
    v = v.reshape(*v.shape[:2], p["value_heads"], -1)
    q, k, v, beta, decay = (
        x.transpose(1, 2).to(at["inner"], memory_format=torch.contiguous_format) for x in (q, k, v, beta, decay)
    )
    if p["channels"]:
        # fp32 is no copy above: transformers adds up its squares in another layout there.
        q, k = q.contiguous(), k.contiguous()
    if p["eps"] is not None:
        q, k = (_by_length(x, p["eps"], at) for x in (q, k))
    width = k.shape[-1]
    if at["scale"] != BEHIND:
        q = q / width**0.5 if at["scale"] == OVER else q * width**-0.5
    q, k = (rounding.by_way_of(x, at.get("normalized")) for x in (q, k))
    state = v.new_zeros(*v.shape[:2], width, v.shape[-1]) if state is None else state.to(v)
    return Read(q, k, v, beta, decay, state)


def _by_length(x: torch.Tensor, eps: float, at: Mapping[str, Any]) -> torch.Tensor:
    squares = added(x, x, -1, at, "squares_order").unsqueeze(-1) + eps
    if at["length"] == RSQRT:
        return x * torch.rsqrt(squares)
    functions = functions_of(at["functions"], x.dtype)
    length = functions.root(squares)
    if at["length"] == RECIPROCAL:
        return x * functions.divided(torch.ones_like(length), length)
    return functions.divided(x, length.expand_as(x))


def _with(state: torch.Tensor, key: torch.Tensor, change: torch.Tensor, at: Mapping[str, Any]) -> torch.Tensor:
    """The state and what a token adds to it."""
    if at.get("contraction") == FMA:
        return fma(change.expand_as(state), key.expand_as(state), state)
    return state + key * change


def _by_token(read: Read, at: Mapping[str, Any], ends: Sequence[int]) -> Result:
    q, k, v, beta, decay, state = read
    output, states = torch.zeros_like(v), dict[int, torch.Tensor]()
    rates = functions_of(at["functions"], decay.dtype).exp(decay)
    for token in range(v.shape[2]):
        state = state * rates[:, :, token].unsqueeze(-1)
        key = k[:, :, token].unsqueeze(-1)
        change = (v[:, :, token] - added(state, key, -2, at)) * beta[:, :, token].unsqueeze(-1)
        state = _with(state, key, change.unsqueeze(-2), at)
        output[:, :, token] = added(state, q[:, :, token].unsqueeze(-1), -2, at)
        if token + 1 in ends:
            states[token + 1] = state
    output = output * k.shape[-1] ** -0.5 if at["scale"] == BEHIND else output
    return output, [states[end] for end in ends]
