"""Kernel of `lightning`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from moeparity.numerics.rounding import rounded
from moeparity.ops.lightning import BLOCKS

Result = tuple[torch.Tensor, list[torch.Tensor]]


class _Read(NamedTuple):
    """What the recurrence reads, in one dtype: q, k, v [B, H, T, D], the state before, [B, H, D, D], and the decays."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    state: torch.Tensor
    decays: Mapping[str, torch.Tensor]


def lightning(
    qkv: torch.Tensor,
    *,
    w: Mapping[str, torch.Tensor],
    p: Mapping[str, Any],
    at: Mapping[str, Any],
    state: torch.Tensor | None = None,
    ends: Sequence[int] = (),
) -> tuple[torch.Tensor, ...]:
    """qkv [B, T, H * 3 D] -> [B, T, H * D], then for each of `ends` the state [B, H, D, D] behind that token, as
    `state` is the one before the first (None: zeros).
    """
    by_head = qkv.to(at["inner"]).reshape(*qkv.shape[:2], p["heads"], -1)
    q, k, v = (x.transpose(1, 2) for x in by_head.chunk(3, -1))
    state = v.new_zeros(*v.shape[:2], *(v.shape[-1],) * 2) if state is None else state.to(v)
    read = _Read(q, k, v, state, {name: decay.to(v) for name, decay in w.items()})
    output, states = (_in_blocks if at["form"] == BLOCKS else _by_token)(read, at, ends)
    return rounded(output.transpose(1, 2), at["output"]).flatten(2), *states


def _in_blocks(read: _Read, at: Mapping[str, Any], ends: Sequence[int]) -> Result:
    """Block after block, as MiniMaxLightningAttention of transformers 5.23.0 computes it."""
    size, tokens, state = read.decays["diagonal_decay"].shape[-1], read.v.shape[2], read.state
    outputs, states = [], dict[int, torch.Tensor]()
    for start in range(0, tokens, size):
        q, k, v = (x[:, :, start : start + size] for x in (read.q, read.k, read.v))
        count = v.shape[2]
        weights = (q @ k.transpose(-1, -2)) * read.decays["diagonal_decay"][:, :, :count, :count]
        outputs.append((q * read.decays["query_decay"][:, :count]) @ state + weights @ v)
        for end in ends:
            if start < end <= start + count:
                states[end] = _behind(read, state, k[:, :, : end - start], v[:, :, : end - start])
        state = _behind(read, state, k, v)
        state = rounded(rounded(state, at["block_sum"]), state.dtype)
    return torch.cat(outputs, -2), [states[end] for end in ends]


def _behind(read: _Read, state: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The state behind the tokens of a block, or its first ones: k, v [B, H, T, D]."""
    count = v.shape[2]
    learnt = (k * read.decays["key_decay"][:, -count:]).transpose(-1, -2) @ v
    return state * torch.exp(-read.decays["slope"] * count) + learnt


def _by_token(read: _Read, at: Mapping[str, Any], ends: Sequence[int]) -> Result:
    rate, state = torch.exp(-read.decays["slope"]), read.state
    outputs, states = [], dict[int, torch.Tensor]()
    for token in range(read.v.shape[2]):
        q, k, v = (x[:, :, token : token + 1] for x in (read.q, read.k, read.v))
        state = rate * state + k.transpose(-1, -2) @ v
        outputs.append(q @ state)
        if token + 1 in ends:
            states[token + 1] = state
    return torch.cat(outputs, -2), [states[end] for end in ends]
