"""Online softmax on blocks of a fixed number of queries and tiles of a fixed number of keys.

torch's GEMMs choose their order of additions by shape, and in attention shapes change with every step: a prefill has
all queries, a decode one, and keys grow. Here every GEMM has the same shape. Letters are those of `flash`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from moeparity.numerics.blocks import filled, try_places
from moeparity.numerics.rounding import stored
from moeparity.ops.attention_forms import FIXED
from moeparity.ops.kernels.flash import Heads, attend, merged_runs, operands
from moeparity.ops.kernels.key_tiles import Cut, Tile, cuts
from moeparity.ops.kernels.linear import places_tried

Tiles = dict[int, tuple[torch.Tensor, torch.Tensor]]
"""Padded keys and values of tiles, by the index of their first key."""


def flash_in_blocks(heads: Heads, visible: torch.Tensor, at: Mapping[str, Any]) -> torch.Tensor:
    """As `flash`, one sequence after the other, without padding on the left.

    The queries are the last T of S keys; visible [B or 1, 1, T, S]. The bits of a query do not depend on what else its
    step computes, if all values are finite: a NaN among the keys of its last tile shows even if it is masked.

    Raises RefusedError if a query's place within its block changes bits on this machine.
    """
    heads, visible = operands(heads, at), visible.expand(heads.q.shape[0], -1, -1, -1)
    out = heads.q.new_zeros(*heads.q.shape[:3], heads.v.shape[-1], dtype=stored(at["output"]))
    # In a pack, the mask says for each query which keys it may see.
    for b, visible_keys in enumerate(heads.mask.any(1) if heads.mask.dim() > 2 else heads.mask):
        if not bool(visible_keys.any()):
            continue
        start = int(visible_keys.to(torch.int8).argmax())
        # Queries that are padding on the left see nothing; their rows stay zero.
        skipped = max(0, start - (heads.k.shape[2] - heads.q.shape[2]))
        sequence = slice(b, b + 1)
        q, k, v = heads.q[sequence, :, skipped:], heads.k[sequence, :, start:], heads.v[sequence, :, start:]
        whole = replace(heads, q=q, k=k, v=v, mask=heads.mask[sequence, ..., start:])
        out[sequence, :, skipped:] = _sequence(whole, visible[sequence, :, skipped:, start:], at)
    return out


def _sequence(heads: Heads, visible: torch.Tensor, at: Mapping[str, Any]) -> torch.Tensor:
    """The attention of the last T queries of one sequence, [1, H, T, V]."""
    queries, keys, size = heads.q.shape[2], heads.k.shape[2], int(at["rows"])
    out = heads.q.new_empty(*heads.q.shape[:3], heads.v.shape[-1], dtype=stored(at["output"]))
    for cut in _cuts(queries, keys, heads.window, at):
        tiles: Tiles = {}
        for start in range(cut.queries.start, cut.queries.stop, size):
            span = slice(start, min(start + size, cut.queries.stop))
            block = replace(heads, q=filled(heads.q[:, :, span], size))
            visible_keys = visible[:, :, span]
            if not bool(visible_keys.any()):
                # Padding on the left of a sequence within a pack.
                out[:, :, span] = 0
                continue
            runs = [
                [_tile(heads, tile, visible_keys, tiles, at) for tile in _visible_tiles(run, visible_keys)]
                for run in cut.runs
            ]
            with places_tried():
                _try(block, runs, at)
            out[:, :, span] = merged_runs(block, runs, at)[:, :, : span.stop - span.start]
    return out


def _cuts(queries: int, keys: int, window: int | None, at: Mapping[str, Any]) -> list[Cut]:
    """The cuts of a sequence. Queries whose last key lies in an earlier run of a fixed length do not get empty later
    runs.
    """
    every = cuts(queries, keys, window, at)
    if at["splits"] != FIXED:
        return every
    (runs,), before = (cut.runs for cut in every), keys - queries
    own_rows = (slice(max(0, run[0].start - before), max(0, run[-1].stop - before)) for run in runs)
    return [Cut(rows, runs[: i + 1]) for i, rows in enumerate(own_rows) if rows.start < rows.stop]


def _visible_tiles(run: Sequence[slice], visible: torch.Tensor) -> list[slice]:
    """The tiles of which some query of a block sees a key; others change nothing."""
    return [tile for tile in run if bool(visible[..., tile].any())]


def _tile(heads: Heads, tile: slice, visible: torch.Tensor, tiles: Tiles, at: Mapping[str, Any]) -> Tile:
    """A tile padded to `kv_block` keys, and which of them the queries of a block (padded as well) see."""
    width = int(at["kv_block"])
    if tile.start not in tiles:
        tiles[tile.start] = (filled(heads.k[:, :, tile], width), filled(heads.v[:, :, tile], width))
    k, v = tiles[tile.start]
    visible_keys = visible.new_zeros(1, 1, int(at["rows"]), width)
    visible_keys[:, :, : visible.shape[2], : tile.stop - tile.start] = visible[..., tile]
    return Tile(k, v, visible_keys)


def _try(block: Heads, runs: Sequence[Sequence[Tile]], at: Mapping[str, Any]) -> None:
    """Try one query in every place of a block, on the first tile, which it sees in full."""
    tile = next(tile for run in runs for tile in run)
    open_tile = replace(tile, visible=torch.ones_like(tile.visible))
    names = ("order", "exponential", "scores_order", "values_order", "row_sum", "probabilities")
    key = ("flash", tile.k.shape, tile.v.shape, *(at.get(name) for name in names))
    try_places(block.q, lambda q: attend(replace(block, q=q, sinks=None), [open_tile], at).out, key)
