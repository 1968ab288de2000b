"""The gated delta rule within chunks of tokens, and chunk after chunk, as several kernels compute it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from moeparity.numerics import gemm, rounding
from moeparity.numerics.dtypes import UNROUNDED
from moeparity.numerics.orders import NATIVE, parse
from moeparity.numerics.rounding import by_way_of
from moeparity.numerics.summation import sum_axis
from moeparity.ops.gated_delta import BEHIND, BLOCK, BLOCKS, KEYS, RESULT, ROWS, SCORES, SEQUENTIAL, TF32, VALUES
from moeparity.ops.kernels.exponentials import functions_of

Result = tuple[torch.Tensor, list[torch.Tensor]]


class Read(NamedTuple):
    """What the rule reads, by head and in one dtype: q, k [B, H, T, Dk], v [B, H, T, Dv], beta [B, H, T], the decay
    [B, H, T, 1], or of channels [B, H, T, Dk], and the state before, [B, H, Dk, Dv].
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    beta: torch.Tensor
    decay: torch.Tensor
    state: torch.Tensor


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


def added(a: torch.Tensor, b: torch.Tensor, axis: int, at: Mapping[str, Any], name: str = "order") -> torch.Tensor:
    """The sum of a b over an axis of a, by torch or in the order that is written out under a name."""
    order = at.get(name, NATIVE)
    return (a * b).sum(axis) if order == NATIVE else sum_axis(a, parse(order), axis, accumulate=a.dtype, times=b)


def in_chunks(read: Read, at: Mapping[str, Any], ends: Sequence[int], *, channels: bool) -> Result:
    """Chunk after chunk: the result [B, H, T, Dv], and the state [B, H, Dk, Dv] behind each of `ends`. channels: each
    channel of the keys has a decay of its own, if there is only one.

    Imitates torch_chunk_gated_delta_rule of transformers 5.23.0, and with other choices the kernels of
    flash-linear-attention in vLLM 0.33.0 and SGLang 0.5.23 (tests/engines/triton_kernels).
    """
    size, tokens = int(at["chunk"]), read.v.shape[2]
    chunks = (_chunks_of_channels if channels else _chunks)(read, size, at)
    factor = read.k.shape[-1] ** -0.5 if at["scale"] == BEHIND else None
    output, state, states = torch.zeros_like(chunks.new_values), read.state, dict[int, torch.Tensor]()
    for i in range(chunks.q.shape[2]):
        memory = by_way_of(state, at.get("read_state"))
        unrounded = chunks.new_values[:, :, i] - _product(chunks.state_keys[:, :, i], memory, at)
        changes = by_way_of(unrounded, at.get("changes"))
        within = _product(chunks.pairs[:, :, i], changes, at)
        earlier = _earlier(chunks, i, memory, at)
        output[:, :, i] = earlier + within if factor is None else earlier * factor + within * factor
        for end in ends:
            if i * size < end < min((i + 1) * size, tokens):
                states[end] = _carried(chunks, i, (unrounded, changes), state, at, end - i * size)
        state = _carried(chunks, i, (unrounded, changes), state, at)
        states[min((i + 1) * size, tokens)] = state
        state = by_way_of(state, at["chunk_state"])
    return output.flatten(2, 3)[:, :, :tokens], [states[end] for end in ends]


def _exp(x: torch.Tensor, at: Mapping[str, Any]) -> torch.Tensor:
    return functions_of(at["functions"], x.dtype).exp(x)


def _product(a: torch.Tensor, b: torch.Tensor, at: Mapping[str, Any]) -> torch.Tensor:
    order = at.get("order", NATIVE)
    return a @ b if order == NATIVE else gemm.matmul(a, b, order)


def _earlier(chunks: _Chunks, i: int, memory: torch.Tensor, at: Mapping[str, Any]) -> torch.Tensor:
    """What the queries of chunk i read of the state before it."""
    since = _exp(chunks.decay[:, :, i], at)
    if at.get("decay_on") == RESULT:
        return _product(chunks.q[:, :, i], memory, at) * since
    return _product(by_way_of(chunks.q[:, :, i] * since, at.get("queries")), memory, at)


def _carried(
    chunks: _Chunks,
    i: int,
    changes: tuple[torch.Tensor, torch.Tensor],
    state: torch.Tensor,
    at: Mapping[str, Any],
    count: int | None = None,
) -> torch.Tensor:
    """The state after chunk i, or after its first `count` tokens: as if zeros filled the chunk behind them.

    changes: before they are rounded, and after it.
    """
    decay, keys, (unrounded, values) = chunks.decay[:, :, i], chunks.k[:, :, i], changes
    last = decay[..., -1:, :] if count is None else decay[..., count - 1 : count, :]
    until = last - decay
    if count is not None:
        later = (torch.arange(values.shape[2], device=values.device) >= count)[:, None]
        until, unrounded, values = (
            until.masked_fill(later, float("-inf")),
            *(x.masked_fill(later, 0) for x in (unrounded, values)),
        )
    until = _exp(until, at)
    if at.get("carry_on") == VALUES:
        values = by_way_of(unrounded * until, at["carried"])
    else:
        keys = by_way_of(keys * until, at.get("carried"))
    return state * _exp(last, at).transpose(-1, -2) + _product(keys.transpose(-1, -2), values, at)


class _Padded(NamedTuple):
    """The tokens of N chunks, the last filled up with zeros, [B, H, N, chunk, ...]: queries, keys, the decay summed up,
    keys and values times beta, and beta.
    """

    q: torch.Tensor
    k: torch.Tensor
    decay: torch.Tensor
    learnt_keys: torch.Tensor
    learnt_values: torch.Tensor
    beta: torch.Tensor


def _padded(read: Read, size: int, at: Mapping[str, Any]) -> _Padded:
    missing = -read.v.shape[2] % size
    q, k, v, decay = (F.pad(x, (0, 0, 0, missing)) for x in (read.q, read.k, read.v, read.decay))
    beta = F.pad(read.beta, (0, missing)).unsqueeze(-1)
    q, k, decay, learnt_keys, learnt_values, beta = (_cut(x, size) for x in (q, k, decay, k * beta, v * beta, beta))
    return _Padded(q, k, _summed(decay, at), learnt_keys, learnt_values, beta)


def _summed(decay: torch.Tensor, at: Mapping[str, Any]) -> torch.Tensor:
    """The decays [B, H, N, chunk, ...] added up along each chunk."""
    if at.get("decay_sums") != SEQUENTIAL:
        return decay.cumsum(3)
    return torch.stack([*accumulate(decay.unbind(3), torch.add)], 3)


def _chunks(read: Read, size: int, at: Mapping[str, Any]) -> _Chunks:
    q, k, decay, learnt_keys, learnt_values, beta = _padded(read, size, at)
    between = (decay - decay.transpose(-1, -2)).masked_fill(_later(size, decay), float("-inf"))
    between = _exp(between, at)
    system = by_way_of(_system(k, learnt_keys, beta, between, at), at["system"])
    sides = [by_way_of(x, at["learnt"]) for x in (learnt_values, learnt_keys * _exp(decay, at))]
    if at["solve"] in (BLOCKS, ROWS):
        inverse = _by_blocks(system, at) if at["solve"] == BLOCKS else _by_rows(system, at["inverse"], at)
        solved = [_product(by_way_of(inverse, at["inverse"]), x, at) for x in sides]
    else:
        solved = [torch.linalg.solve_triangular(system, x, upper=False, unitriangular=True) for x in sides]
    new_values, state_keys = (
        by_way_of(x, at[name]) for x, name in zip(solved, ("new_values", "state_keys"), strict=True)
    )
    pairs = by_way_of(_product(q, k.transpose(-1, -2), at) * between, at["pairs"])
    return _Chunks(q, k, decay, pairs, new_values, state_keys)


def _system(
    k: torch.Tensor, learnt_keys: torch.Tensor, beta: torch.Tensor, between: torch.Tensor, at: Mapping[str, Any]
) -> torch.Tensor:
    """The scores of keys among each other, which beta meets where `beta_on` says it; what lies on the diagonal and
    above it nobody reads.
    """
    if at["beta_on"] == KEYS:
        return _product(learnt_keys, k.transpose(-1, -2), at) * between
    scores = _product(k, k.transpose(-1, -2), at)
    return scores * beta * between if at["beta_on"] == SCORES else scores * between * beta


def _by_rows(system: torch.Tensor, dtype: torch.dtype | str, at: Mapping[str, Any]) -> torch.Tensor:
    """The inverse of the unit lower triangular matrices, row after row; each row is stored before the next is made."""
    size = system.shape[-1]
    inverse = by_way_of(-system.tril(-1), dtype)
    for row in range(1, size):
        entries = inverse[..., row, :row].clone()
        further = added(inverse[..., :row, :row].clone(), entries.unsqueeze(-1), -2, at)
        inverse[..., row, :row] = by_way_of(entries + further, dtype)
    return inverse + torch.eye(size, dtype=inverse.dtype, device=inverse.device)


def _by_blocks(system: torch.Tensor, at: Mapping[str, Any]) -> torch.Tensor:
    """The inverse, of which the blocks on the diagonal are made by rows, and the others by products of blocks, those
    nearest to it first. Imitates merge_16x16_to_64x64_inverse_kernel of flash-linear-attention in vLLM 0.33.0.
    """
    size = system.shape[-1]
    starts = range(0, size, BLOCK)
    blocks = {
        (row, column): system[..., row : row + BLOCK, column : column + BLOCK]
        for row in starts
        for column in starts
        if column < row
    }
    solved = {(row, row): _by_rows(system[..., row : row + BLOCK, row : row + BLOCK], UNROUNDED, at) for row in starts}
    for distance in starts[1:]:
        for column in range(0, size - distance, BLOCK):
            row = column + distance
            solved[row, column] = -_merged(row, column, blocks, solved, at)
    inverse = torch.zeros_like(system)
    for (row, column), block in solved.items():
        inverse[..., row : row + BLOCK, column : column + BLOCK] = block
    return inverse


_Blocks = Mapping[tuple[int, int], torch.Tensor]


def _merged(row: int, column: int, blocks: _Blocks, solved: _Blocks, at: Mapping[str, Any]) -> torch.Tensor:
    """What lies below the diagonal: of neighbours (A_i B) A_j, of others A_i (sum of B A)."""

    def times(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        if at["merge"] == TF32:
            a, b = rounding.tf32(a), rounding.tf32(b)
        return _product(a, b, at)

    if row - column == BLOCK:
        return times(times(solved[row, row], blocks[row, column]), solved[column, column])
    between = range(column, row, BLOCK)
    total = times(blocks[row, between[0]], solved[between[0], column])
    for middle in between[1:]:
        total = total + times(blocks[row, middle], solved[middle, column])
    return times(solved[row, row], total)


def _chunks_of_channels(read: Read, size: int, at: Mapping[str, Any]) -> _Chunks:
    """The same with a decay for each channel. The triangular system is inverted row after row, as transformers 5.23.0
    does it (chunk_kimi_delta_attention).
    """
    q, k, decay, learnt_keys, learnt_values, _ = _padded(read, size, at)
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
