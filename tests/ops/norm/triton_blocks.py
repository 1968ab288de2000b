"""How batch-invariant Triton kernels add squares, as PTX of Triton 3.8.0 for sm_90 reads, on Python numbers."""

from __future__ import annotations

from collections.abc import Callable

from tests.ops.norm.threads import HIGH, Row, butterfly, f32, plus, square_added, warps


def triton_tiles(row: Row, of_thread: Callable[[Row, int], float]) -> float:
    """Tiles of 1024, what is missing masked to zero; a warp's lanes 16 apart first, then four warps, then the tiles."""
    total = 0.0
    for first in range(0, len(row), 1024):
        tile = row[first : first + 1024] + [0.0] * (first + 1024 - len(row))
        per_thread = [of_thread(tile, thread) for thread in range(128)]
        total = plus(total, butterfly([butterfly(warp, HIGH) for warp in warps(per_thread)], (2, 1)))
    return total


def in_pairs(values: Row) -> float:
    first, *rest = [plus(a, b) for a, b in zip(values[::2], values[1::2], strict=True)]
    return in_pairs([first, *rest]) if rest else first


def eight_squares(tile: Row, thread: int) -> float:
    return in_pairs([f32(x * x) for x in tile[8 * thread : 8 * thread + 8]])


def eight_contracted(tile: Row, thread: int) -> float:
    """mul.f32 of the odd elements, fma.rn.f32 of the even ones onto them, then add.f32: as the PTX reads."""
    eight = tile[8 * thread : 8 * thread + 8]
    return in_pairs([square_added(f32(odd * odd), even) for even, odd in zip(eight[::2], eight[1::2], strict=True)])


def four_and_four(tile: Row, thread: int) -> float:
    """One load of 16 bytes from each half of the tile."""
    low, high = ([f32(x * x) for x in tile[at + 4 * thread : at + 4 * thread + 4]] for at in (0, 512))
    return plus(in_pairs(low), in_pairs(high))
