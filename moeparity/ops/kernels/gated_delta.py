"""Kernel of `gated_delta`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from moeparity.numerics import rounding
from moeparity.numerics.orders import NATIVE
from moeparity.ops.gated_delta import CHUNKS, OVER, RSQRT
from moeparity.ops.kernels.exponentials import sigmoid, softplus

Result = tuple[torch.Tensor, list[torch.Tensor]]


class _Read(NamedTuple):
    """What the rule reads, by head and in one dtype: q, k [B, H, T, Dk], v [B, H, T, Dv], beta [B, H, T], the decay
    [B, H, T, 1], or of channels [B, H, T, Dk], and the state before, [B, H, Dk, Dv].
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    beta: torch.Tensor
    decay: torch.Tensor
    state: torch.Tensor


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
    steps, rate = (wide_a + w["dt_bias"]).view(*a.shape[:2], p["value_heads"], -1), log_rate.exp().unsqueeze(-1)
    bound = p.get("bound")
    if bound is None:
        decay = -rate * softplus(steps, at["softplus"])
    else:
        decay = bound * sigmoid(rate * steps, at.get("logistic", NATIVE))
    decay = rounding.rounded(decay, at["decay"])
    read = _read(q, k, v, beta, decay, p, at, state)
    output, states = (_in_chunks if at["form"] == CHUNKS else _by_token)(read, at, ends)
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
) -> _Read:
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
        q, k = _by_length(q, p["eps"], at["length"]), _by_length(k, p["eps"], at["length"])
    width = k.shape[-1]
    q = q / width**0.5 if at["scale"] == OVER else q * width**-0.5
    state = v.new_zeros(*v.shape[:2], width, v.shape[-1]) if state is None else state.to(v)
    return _Read(q, k, v, beta, decay, state)


def _by_length(x: torch.Tensor, eps: float, form: str) -> torch.Tensor:
    squares = (x * x).sum(-1, keepdim=True) + eps
    return x * torch.rsqrt(squares) if form == RSQRT else x / torch.sqrt(squares)


def _by_token(read: _Read, at: Mapping[str, Any], ends: Sequence[int]) -> Result:
    q, k, v, beta, decay, state = read
    output, states = torch.zeros_like(v), dict[int, torch.Tensor]()
    for token in range(v.shape[2]):
        state = state * decay[:, :, token].exp().unsqueeze(-1)
        key = k[:, :, token].unsqueeze(-1)
        change = (v[:, :, token] - (state * key).sum(-2)) * beta[:, :, token].unsqueeze(-1)
        state = state + key * change.unsqueeze(-2)
        output[:, :, token] = (state * q[:, :, token].unsqueeze(-1)).sum(-2)
        if token + 1 in ends:
            states[token + 1] = state
    return output, [states[end] for end in ends]


class _Chunks(NamedTuple):
    """The tokens [B, H, N, chunk, ...] of N chunks: queries and keys as read, the decay summed up within each chunk,
    [B, H, N, chunk, 1 or Dk], and what the triangular system gives: the values that are new, and the keys by which the
    old state is read.
    """

    q: torch.Tensor
    k: torch.Tensor
    decay: torch.Tensor
    pairs: torch.Tensor
    new_values: torch.Tensor
    state_keys: torch.Tensor


def _in_chunks(read: _Read, at: Mapping[str, Any], ends: Sequence[int]) -> Result:
    """Chunk after chunk, as torch_chunk_gated_delta_rule of transformers 5.23.0 computes it."""
    size, tokens = int(at["chunk"]), read.v.shape[2]
    chunks = (_chunks if read.decay.shape[-1] == 1 else _chunks_of_channels)(read, size)
    queries = chunks.q * chunks.decay.exp()
    keys = chunks.k * (chunks.decay[..., -1:, :] - chunks.decay).exp()
    rates = chunks.decay[..., -1, :].exp().unsqueeze(-1)
    output, state, states = torch.zeros_like(chunks.new_values), read.state, dict[int, torch.Tensor]()
    for i in range(chunks.q.shape[2]):
        values = chunks.new_values[:, :, i] - chunks.state_keys[:, :, i] @ state
        output[:, :, i] = queries[:, :, i] @ state + chunks.pairs[:, :, i] @ values
        for end in ends:
            if i * size < end < min((i + 1) * size, tokens):
                states[end] = _within(chunks, i, end - i * size, values, state)
        state = state * rates[:, :, i] + keys[:, :, i].transpose(-1, -2) @ values
        states[min((i + 1) * size, tokens)] = state
        state = rounding.rounded(rounding.rounded(state, at["chunk_state"]), state.dtype)
    return output.flatten(2, 3)[:, :, :tokens], [states[end] for end in ends]


def _within(chunks: _Chunks, i: int, count: int, values: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    """The state after the first `count` tokens of chunk i: as if zeros filled the chunk behind them."""
    decay, later = chunks.decay[:, :, i], torch.arange(values.shape[2], device=values.device) >= count
    last = decay[..., count - 1 : count, :]
    keys = chunks.k[:, :, i] * (last - decay).masked_fill(later[:, None], float("-inf")).exp()
    return state * last.exp().transpose(-1, -2) + keys.transpose(-1, -2) @ values.masked_fill(later[:, None], 0)


class _Padded(NamedTuple):
    """The tokens of N chunks, the last filled up with zeros, [B, H, N, chunk, ...]: queries, keys, the decay summed up,
    keys and values times beta.
    """

    q: torch.Tensor
    k: torch.Tensor
    decay: torch.Tensor
    learnt_keys: torch.Tensor
    learnt_values: torch.Tensor


def _padded(read: _Read, size: int) -> _Padded:
    missing = -read.v.shape[2] % size
    q, k, v, decay = (F.pad(x, (0, 0, 0, missing)) for x in (read.q, read.k, read.v, read.decay))
    beta = F.pad(read.beta, (0, missing)).unsqueeze(-1)
    q, k, decay, learnt_keys, learnt_values = (_cut(x, size) for x in (q, k, decay, k * beta, v * beta))
    return _Padded(q, k, decay.cumsum(3), learnt_keys, learnt_values)


def _chunks(read: _Read, size: int) -> _Chunks:
    q, k, decay, learnt_keys, learnt_values = _padded(read, size)
    between = (decay - decay.transpose(-1, -2)).masked_fill(_later(size, decay), float("-inf")).exp()
    system = (learnt_keys @ k.transpose(-1, -2)) * between
    new_values, state_keys = (
        torch.linalg.solve_triangular(system, x, upper=False, unitriangular=True)
        for x in (learnt_values, learnt_keys * decay.exp())
    )
    return _Chunks(q, k, decay, (q @ k.transpose(-1, -2)) * between, new_values, state_keys)


def _chunks_of_channels(read: _Read, size: int) -> _Chunks:
    """The same with a decay for each channel. The triangular system is inverted row after row, as transformers 5.23.0
    does it (chunk_kimi_delta_attention).
    """
    q, k, decay, learnt_keys, learnt_values = _padded(read, size)
    later = _later(size, decay)
    between = (decay.unsqueeze(-2) - decay.unsqueeze(-3)).masked_fill(later[..., None], float("-inf")).exp()
    keys = k.unsqueeze(-3)
    inverse = -(learnt_keys.unsqueeze(-2) * keys * between).sum(-1).masked_fill(_later(size, decay, 0), 0)
    for row in range(1, size):
        entries = inverse[..., row, :row].clone()
        inverse[..., row, :row] = entries + (entries.unsqueeze(-1) * inverse[..., :row, :row].clone()).sum(-2)
    inverse = inverse + torch.eye(size, dtype=inverse.dtype, device=inverse.device)
    pairs = (q.unsqueeze(-2) * keys * between).sum(-1).masked_fill(later, 0)
    return _Chunks(q, k, decay, pairs, inverse @ learnt_values, inverse @ (learnt_keys * decay.exp()))


def _later(size: int, like: torch.Tensor, diagonal: int = 1) -> torch.Tensor:
    """[size, size], True where a column stands at least `diagonal` behind its row."""
    return torch.ones(size, size, dtype=torch.bool, device=like.device).triu(diagonal)


def _cut(x: torch.Tensor, size: int) -> torch.Tensor:
    """[B, H, T, ...] as [B, H, N, size, ...]."""
    return x.reshape(*x.shape[:2], -1, size, *x.shape[3:])
