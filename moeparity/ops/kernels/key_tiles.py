"""How split-KV cuts the keys of a sequence into runs of tiles, and for which queries; needs no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from moeparity.numerics.gemm_forms import spans
from moeparity.ops.attention_forms import FIXED, SEEN, SHARED, TILES


@dataclass(frozen=True, slots=True)
class Cut:
    """Some queries and the runs of key tiles to which they attend; keys that they do not see are masked."""

    queries: slice
    runs: list[list[slice]]


def cuts(queries: int, length: int, window: int | None, at: Mapping[str, Any]) -> list[Cut]:
    """The cuts for the last `queries` of `length` tokens, by the attributes of `attention`; they cover all queries in
    order.

    Imitates, all read: FlashAttention 0251105 csrc/flash_attn/src/flash_fwd_kernel.h, n_blocks_per_split (`tiles`);
    0f25c7b hopper/block.h, get_n_block_min_max (`seen`); vLLM 0155494 vllm/v1/attention/ops/triton_decode_attention.py
    and SGLang 03cd2ec decode_attention.py, kv_len_per_split (`keys`); FlashInfer fb28d72 attention/prefill.cuh,
    chunk_start (`fixed`); vLLM 5704f34f36 vllm/v1/attention/backends/flash_attn.py, cascade_attention (`shared`). How
    many splits their heuristics choose depends on the batch and the GPU, and is not modelled.
    """
    splits, block, every = at["splits"], at["kv_block"], slice(0, queries)
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


def _cut(first: int, end: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, end)) for start in range(first, end, size)]


def _shared(tiles: list[slice], splits: int) -> list[list[slice]]:
    return [tiles[run] for run in spans(len(tiles), min(splits, len(tiles)))]
