"""Tiles of keys: how split-KV cuts the keys of a sequence into runs of them, and for which queries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from moeparity.numerics.gemm_forms import spans
from moeparity.ops.attention_forms import FIXED, L2, SEEN, SHARED, TILES

_QUERIES, _KEYS = 8, 32
"""vLLM's kernels for CPUs without AMX compute so many queries at once, and keys in groups of so many."""
_MOST = 128 * _QUERIES
_FP32 = 4


@dataclass(frozen=True, slots=True)
class Tile:
    """Some keys [B, H, S, D] and values [B, H, S, V], and which of them each query sees, [B or 1, 1, T, S]."""

    k: torch.Tensor
    v: torch.Tensor
    visible: torch.Tensor


@dataclass(frozen=True, slots=True)
class Room:
    """What the tiles of keys are made to fit into: `l2` bytes of cache, for heads `width` wide, of which a stored key
    has `stored` bytes a number.
    """

    l2: int
    width: int
    stored: int

    def queries(self) -> int:
        """How many queries a block has, those of the last one apart."""
        per_token = self.width * (2 * _FP32 + 2 * self.stored) + _QUERIES * _FP32
        return max(_down(min(self.l2 // 2 // per_token, _MOST), _QUERIES), _QUERIES)

    def keys(self, queries: int) -> int:
        """How many keys a tile has beside a block of so many queries. Keys are not counted where one pass over them
        serves all queries.
        """
        block = -(-queries // _QUERIES) * _QUERIES
        per_key = _QUERIES * _FP32 + (0 if block <= _QUERIES else 2 * self.width * self.stored)
        return max(_down((self.l2 // 2 - block * self.width * 2 * _FP32) // per_key, _KEYS), _KEYS)


@dataclass(frozen=True, slots=True)
class Cut:
    """Some queries and the runs of key tiles to which they attend; keys that they do not see are masked."""

    queries: slice
    runs: list[list[slice]]


def cuts(queries: int, length: int, window: int | None, at: Mapping[str, Any], room: Room | None = None) -> list[Cut]:
    """The cuts for the last `queries` of `length` tokens, by the attributes of `attention`; they cover all queries in
    order. `room` is what tiles have to fit into under `kv_block: l2`.

    Imitates, all read: FlashAttention 0251105 csrc/flash_attn/src/flash_fwd_kernel.h, n_blocks_per_split (`tiles`);
    0f25c7b hopper/block.h, get_n_block_min_max (`seen`); vLLM 0155494 vllm/v1/attention/ops/triton_decode_attention.py
    and SGLang 03cd2ec decode_attention.py, kv_len_per_split (`keys`); FlashInfer fb28d72 attention/prefill.cuh,
    chunk_start (`fixed`); vLLM 5704f34f36 vllm/v1/attention/backends/flash_attn.py, cascade_attention (`shared`); vLLM
    0.32.0 csrc/cpu/cpu_attn_impl.hpp, AttentionMainLoop (`l2`; run, tests/real/test_vllm_cpu.py). How
    many splits their heuristics choose depends on the batch and the GPU, and is not modelled.
    """
    splits, block, every = at["splits"], at["kv_block"], slice(0, queries)
    if block == L2 and room is not None:
        return list(_fitting(queries, length, window, room))
    if splits == FIXED:
        return [Cut(every, [_cut(run.start, run.stop, block) for run in _cut(0, length, at["split_keys"])])]
    if splits == SHARED:
        return list(_behind_a_prefix(queries, length, at))
    shared_by = at["split_by"] if splits > 1 else TILES
    if shared_by == TILES:
        return [Cut(every, _shared(_cut(0, length, block), splits))]
    result = []
    before = length - queries
    for rows in _cut(0, queries, at["q_block"]):
        first, last = before + rows.start, before + rows.stop
        first = 0 if window is None else max(0, first - window + 1)
        if shared_by == SEEN:
            tiles = _cut(0, length, block)[first // block : -(-last // block)]
            result.append(Cut(rows, _shared(tiles, splits)))
        else:
            unit = at["split_unit"]
            size = -(-(last - first) // splits)
            runs = _cut(first, last, -(-size // unit) * unit)
            result.append(Cut(rows, [_cut(run.start, run.stop, block) for run in runs]))
    return result


def _behind_a_prefix(queries: int, length: int, at: Mapping[str, Any]) -> Iterator[Cut]:
    """Queries within the shared prefix attend to that alone, later ones to two runs."""
    block, shared = at["kv_block"], min(at["shared_keys"], length)
    within = min(queries, max(0, shared - (length - queries)))
    prefix = _cut(0, shared, block)
    if within:
        yield Cut(slice(0, within), [prefix])
    if within < queries:
        yield Cut(slice(within, queries), [prefix, _cut(shared, length, block)])


def _fitting(queries: int, length: int, window: int | None, room: Room) -> Iterator[Cut]:
    """Blocks of queries, each with tiles up to its last key; a window's first tile begins with the group of keys that
    the first query's first key is in.
    """
    before = length - queries
    for rows in _cut(0, queries, room.queries()):
        first = 0 if window is None else _down(max(0, before + rows.start - window + 1), _KEYS)
        yield Cut(rows, [_cut(first, before + rows.stop, room.keys(rows.stop - rows.start))])


def _down(number: int, unit: int) -> int:
    return number // unit * unit


def _cut(first: int, end: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, end)) for start in range(first, end, size)]


def _shared(tiles: list[slice], splits: int) -> list[list[slice]]:
    return [tiles[run] for run in spans(len(tiles), min(splits, len(tiles)))]
