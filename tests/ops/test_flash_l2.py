"""Tiles of keys that fit into a cache: what `kv_block: l2` cuts, and that each block is attention with such tiles."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from moeparity.numerics.cpu import l2_bytes
from moeparity.ops.attention import ATTENTION
from moeparity.ops.kernels.attention import attention
from moeparity.ops.kernels.key_tiles import Room, cuts
from tests.ops.flash_by_hand import DTYPES, PLAIN, SITES
from tests.ops.plain import BF16, FP32, assert_bits

FITS: dict[str, Any] = PLAIN | {"kv_block": "l2", "rows": "all", "kv_order": "ascending", "row_sum": "native"}
FITS |= {"probabilities": "fp32"}
WIDTH, TOKENS = 32, 200


def sizes(l2: int, width: int, stored: int, queries: int) -> tuple[int, int]:
    """The queries of a whole block, and the keys of a tile beside `queries` of them, as vLLM's two functions count."""
    half = l2 // 2
    whole = min(half // (width * (4 + 2 * stored + 4) + 8 * 4), 1024)
    rounded = (queries + 7) // 8 * 8
    free = half - rounded * width * (4 + 4)
    keys = free // (4 * 8) if rounded <= 8 else free // (4 * 8 + 2 * width * stored)
    return max(whole - whole % 8, 8), max(keys - keys % 32, 32)


@pytest.mark.parametrize("l2", [1 << 12, 1 << 15, 1 << 20, 1 << 21, 10 << 20])
@pytest.mark.parametrize("width", [32, 64, 128, 192])
@pytest.mark.parametrize("stored", [2, 4])
@pytest.mark.parametrize("queries", [1, 8, 9, 100, 328])
def test_sizes(l2: int, width: int, stored: int, queries: int) -> None:
    room = Room(l2, width, stored)
    assert (room.queries(), room.keys(queries)) == sizes(l2, width, stored, queries)


def test_of_one_mebibyte() -> None:
    """What vLLM 0.32.0 had on an AMD EPYC, seen in its bits before there was a formula."""
    room = Room(1 << 20, 128, 2)
    assert (room.queries(), room.keys(328), room.keys(1)) == (328, 320, 16128)


def _at(**choices: Any) -> dict[str, Any]:
    at = FITS | choices
    return at | {site: DTYPES[at[site]] for site in SITES}


def _operands(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, TOKENS, WIDTH, generator=generator).to(dtype) for _ in range(3))
    return q, k, v


def _attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int | None, **at: Any) -> torch.Tensor:
    mask = torch.ones(1, k.shape[2], dtype=torch.bool)
    return attention(q, k, v, mask, w={}, p={"window": window}, at=_at(**at))


@pytest.mark.parametrize("window", [None, 50])
@pytest.mark.parametrize("dtype", [BF16, FP32])
@pytest.mark.parametrize("earlier", [0, 41])
def test_blocks(window: int | None, dtype: torch.dtype, earlier: int) -> None:
    """Each block of queries as attention of its own, to the keys from the group of 32 on in which its first one is."""
    (q, k, v), l2 = _operands(dtype), 1 << 15
    q = q[:, :, earlier:]
    whole = _attended(q, k, v, window, l2_bytes=l2)
    rows, _ = sizes(l2, WIDTH, dtype.itemsize, 1)
    assert rows < q.shape[2]
    for start in range(0, q.shape[2], rows):
        stop = min(start + rows, q.shape[2])
        first = 0 if window is None else max(0, earlier + start - window + 1) // 32 * 32
        _, keys = sizes(l2, WIDTH, dtype.itemsize, stop - start)
        visible = slice(first, earlier + stop)
        block = _attended(q[:, :, start:stop], k[:, :, visible], v[:, :, visible], window, kv_block=keys)
        assert_bits(whole[:, start:stop], block)


def test_each_size_has_other_bits() -> None:
    """And that of the machine is a number that its torch tells."""
    q, k, v = _operands(FP32)
    small, large = (_attended(q, k, v, None, l2_bytes=l2) for l2 in (1 << 15, 1 << 17))
    assert not torch.equal(small, large)
    machine = _attended(q, k, v, None, l2_bytes="machine")
    assert_bits(machine, _attended(q, k, v, None, l2_bytes=l2_bytes()))


@pytest.mark.parametrize("choices", [{"splits": 2}, {"splits": "fixed"}, {"rows": 16}])
def test_refused(choices: dict[str, Any]) -> None:
    assert ATTENTION.refusals.values is not None
    refusal = ATTENTION.refusals.values({}, FITS | {"pieces": 1} | choices)
    assert refusal is not None
    assert refusal[0] == "kv_block"


def test_cuts_cover_queries() -> None:
    at = {"splits": 1, "kv_block": "l2"}
    every = cuts(100, 300, None, at, Room(1 << 15, WIDTH, 2))
    assert [row for cut in every for row in range(*cut.queries.indices(100))] == list(range(100))
    assert [cut.runs[0][-1].stop for cut in every] == [200 + cut.queries.stop for cut in every]
