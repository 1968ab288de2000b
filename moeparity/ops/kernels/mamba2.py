"""Kernel of `mamba2`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from moeparity.numerics import rounding
from moeparity.ops.kernels.exponentials import softplus
from moeparity.ops.mamba2 import CHUNKS, CONFIG

Result = tuple[torch.Tensor, list[torch.Tensor]]


class _Read(NamedTuple):
    """What the scan reads: x [B, T, H, P], b, c [B, T, G, N] and dt [B, T, H] before its bias, as they come; the bias
    [H], A and D [H]; and the state before, [B, H, P, N] (None: zeros).
    """

    x: torch.Tensor
    b: torch.Tensor
    c: torch.Tensor
    dt: torch.Tensor
    bias: torch.Tensor
    rate: torch.Tensor
    skip: torch.Tensor
    state: torch.Tensor | None


def mamba2(
    x: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    dt: torch.Tensor,
    *,
    w: Mapping[str, torch.Tensor],
    p: Mapping[str, Any],
    at: Mapping[str, Any],
    state: torch.Tensor | None = None,
    ends: Sequence[int] = (),
) -> tuple[torch.Tensor, ...]:
    """x [B, T, H * P], b, c [B, T, G * N], dt [B, T, H] -> [B, T, H * P], then for each of `ends` the state
    [B, H, P, N] behind that token, as `state` is the one before the first (None: zeros).
    """
    # A step of a schedule may come as part of a larger value; torch's fp32 exponentials and sums go by where a
    # convolution leaves it.
    x, b, c = (y.transpose(1, 2).clone(memory_format=torch.contiguous_format).transpose(1, 2) for y in (x, b, c))
    by_head = x.reshape(*x.shape[:2], p["heads"], -1)
    b, c = (y.reshape(*y.shape[:2], p["groups"], -1) for y in (b, c))
    rate = -torch.exp(w["a_log"].to(at["inner"]))
    read = _Read(by_head, b, c, dt, w["dt_bias"], rate, w["d"], state)
    output, states = (_in_chunks if at["form"] == CHUNKS else _by_token)(read, p, at, ends)
    return rounding.rounded(output, at["output"]).flatten(2), *states


def _steps(dt: torch.Tensor, bias: torch.Tensor, p: Mapping[str, Any], at: Mapping[str, Any]) -> torch.Tensor:
    """The softplus of dt [..] and its bias, at least the floor."""
    steps = rounding.rounded(softplus(rounding.add(dt, bias, at["dt"]), at["softplus"]), at["dt"])
    return torch.clamp(steps, min=p["floor"]) if at.get("floor") == CONFIG else steps


def _by_token(read: _Read, p: Mapping[str, Any], at: Mapping[str, Any], ends: Sequence[int]) -> Result:
    """Token after token, as mamba2_selective_state_update of transformers 5.23.0 computes each."""
    count, tokens, heads, channels = read.x.shape
    width, inner = read.b.shape[-1], at["inner"]
    state = read.x.new_zeros(count, heads, channels, width) if read.state is None else read.state
    state, outputs, states = state.to(inner), [], dict[int, torch.Tensor]()
    bias, skip = (y[:, None].expand(heads, channels) for y in (read.bias, read.skip))
    rate = read.rate[:, None, None].expand(heads, channels, width)
    for token in range(tokens):
        x, dt = read.x[:, token], read.dt[:, token, :, None].expand(count, heads, channels)
        steps = _steps(dt, bias, p, at)[..., None]
        b, c = (y[:, token].repeat_interleave(heads // y.shape[2], 1, output_size=heads) for y in (read.b, read.c))
        increment = rounding.product(
            rounding.product(steps, b.unsqueeze(2), at["increment"]), x[..., None], at["increment"]
        )
        state = state * torch.exp(steps.to(inner) * rate) + increment
        operands = (rounding.rounded(y, at["read"]) for y in (state.flatten(0, 1), c.flatten(0, 1).unsqueeze(-1)))
        of_state = torch.bmm(*operands).view(count, heads, channels)
        outputs.append(rounding.add(of_state, rounding.product(x, skip, at["skip"]), at["output"]))
        if token + 1 in ends:
            states[token + 1] = state
    return torch.stack(outputs, 1), [states[end] for end in ends]


class _Chunks(NamedTuple):
    """The tokens of N chunks, the last filled up with zeros: x times dt [B, N, chunk, H, P], b, c [B, N, chunk, H, N],
    and the decay, dt A, [B, H, N, chunk].
    """

    x: torch.Tensor
    b: torch.Tensor
    c: torch.Tensor
    decay: torch.Tensor


def _in_chunks(read: _Read, p: Mapping[str, Any], at: Mapping[str, Any], ends: Sequence[int]) -> Result:
    """Chunk after chunk, as mamba2_chunk_scan of transformers 5.23.0 computes it: the states between them at once."""
    size, tokens = int(p["chunk"] if at["chunk"] == CONFIG else at["chunk"]), read.x.shape[1]
    chunks, skip = _chunks(read, p, at, size)
    summed = chunks.decay.cumsum(-1)
    pairs = torch.einsum("bclhn,bcshn->bclsh", chunks.c, chunks.b) * _segments(chunks.decay).exp().permute(
        0, 2, 3, 4, 1
    )
    output = torch.einsum("bclsh,bcshp->bclhp", pairs, chunks.x)
    behind = torch.exp(summed[..., -1:] - summed).permute(0, 2, 3, 1)
    learnt = torch.einsum("bclhn,bclhp->bchpn", chunks.b * behind[..., None], chunks.x)
    before = torch.zeros_like(learnt[:, :1]) if read.state is None else read.state[:, None].to(learnt)
    between = _segments(F.pad(summed[..., -1], (1, 0))).exp().transpose(1, 3)
    states = torch.einsum("bzch,bzhpn->bchpn", between, torch.cat((before, learnt), 1))
    # The last one stays in memory behind the others, as in transformers: torch's fp32 GEMMs go by strides.
    starts = states[:, :-1]
    if at["chunk_state"] != states.dtype:
        later = rounding.rounded(rounding.rounded(states[:, 1:], at["chunk_state"]), states.dtype)
        starts = torch.cat((states[:, :1], later), 1)[:, :-1]
    carried = torch.einsum("bclhn,bchpn->bclhp", chunks.c, starts) * summed.exp().permute(0, 2, 3, 1)[..., None]
    whole = (output + carried).contiguous().flatten(1, 2)
    ended = [
        _within(chunks, (end - 1) // size, (end - 1) % size + 1, starts)
        if end % size and end < tokens
        else states[:, -(-end // size)]
        for end in ends
    ]
    return rounding.add(whole, skip, at["output"])[:, :tokens], ended


def _chunks(read: _Read, p: Mapping[str, Any], at: Mapping[str, Any], size: int) -> tuple[_Chunks, torch.Tensor]:
    """The chunks, and D x of their tokens [B, N * chunk, H, P]."""
    inner, heads, missing = at["inner"], read.x.shape[2], -read.x.shape[1] % size
    steps, x = _steps(read.dt, read.bias, p, at), read.x.to(inner)
    b, c = (y.to(inner).repeat_interleave(heads // y.shape[2], 2, output_size=heads) for y in (read.b, read.c))
    skip = rounding.product(read.skip[:, None], F.pad(x, (0, 0, 0, 0, 0, missing)), at["skip"])
    decay = read.rate * steps.to(inner)
    learnt, b, c, decay = (_cut(y, missing, size) for y in (x * steps[..., None].to(inner), b, c, decay))
    return _Chunks(learnt, b, c, decay.permute(0, 3, 1, 2)), skip


def _cut(x: torch.Tensor, missing: int, size: int) -> torch.Tensor:
    """[B, T, ..] as [B, N, size, ..], with zeros for the tokens that are missing."""
    padded = F.pad(x, (*(0, 0) * (x.dim() - 2), 0, missing))
    return padded.reshape(x.shape[0], -1, size, *x.shape[2:])


def _segments(decay: torch.Tensor) -> torch.Tensor:
    """The sums of what lies between two places: [.., T] -> [.., T, T], the place behind first, -inf where none lies."""
    size = decay.shape[-1]
    pairs = torch.ones(size, size, dtype=torch.bool, device=decay.device)
    earlier = decay[..., None].expand(*decay.shape, size).masked_fill(pairs.triu(), 0)
    return earlier.cumsum(-2).masked_fill(pairs.triu(1), -torch.inf)


def _within(chunks: _Chunks, i: int, count: int, starts: torch.Tensor) -> torch.Tensor:
    """The state after the first `count` tokens of chunk i, as if zeros filled the chunk behind them."""
    summed = chunks.decay[:, :, i, :count].cumsum(-1)
    behind = torch.exp(summed[..., -1:] - summed).transpose(1, 2)
    learnt = torch.einsum("blhn,blhp->bhpn", chunks.b[:, i, :count] * behind[..., None], chunks.x[:, i, :count])
    return starts[:, i] * summed[..., -1].exp()[..., None, None] + learnt
