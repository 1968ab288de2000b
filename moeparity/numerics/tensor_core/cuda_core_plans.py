"""How cuBLASLt's kernels for vectors and few rows add up K on an H100's CUDA cores. Importing this needs no torch.

Which numbers of the heuristic stand for what: facebookexperimental/triton db4666f (bitequiv, cublas_match, sm_90 with
cuBLASLt 13.1.1); algorithm 13 with option 75 held to whole GEMMs of an H200. Its GEMM by algorithm 11 tells nothing: in
bf16 other orders give the same bits, and by which plan its fp32 result was made was not asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Final, Literal, NamedTuple

ASCENDING: Final = "ascending"
BUTTERFLY: Final = "butterfly"
How = Literal["ascending", "butterfly"]
"""Left to right; or halves onto each other, as the lanes of a warp are added."""
CHAINS, LANES, MAGMA = 11, 13, 16
"""gemmSN; gemv2T and gemv2N; magma_sgemmEx. 14, dot_kernel, is not modelled: how many of K its threads load goes by the
layout of operands, and no record has it in torch's.
"""
HELD: Final = ((LANES, 75),)
"""Algorithms, each with a custom option, that GEMMs recorded on an H200 tell."""
WIDEST: Final = 132 * 2048 // 32
"""Outputs up to which option 10 of LANES has its 32 lanes, as many as an H100 holds threads; of more it has fewer."""
_NARROWED: Final = 10


class Level(NamedTuple):
    """A level of a sum: partial sums in one chain, of which each begins so much of K further on as `digits` say, sizes
    and steps, the last one fastest. With `bounded` none takes anything beyond the begin of the next one.
    """

    digits: tuple[tuple[int, int], ...]
    how: How = ASCENDING
    bounded: bool = False


class _Lanes(NamedTuple):
    """Of LANES: how many of K a lane loads at once (below 1: its whole share, at most so many; 0: however many), the
    number of lanes, after how many loads a sum begins anew (0: never), and how lanes are added.
    """

    vector: int
    lanes: int
    chunk: int = 0
    how: How = BUTTERFLY


def _pairs(*rows: tuple[int, int, int]) -> Mapping[int, _Lanes]:
    """By lanes: options of contiguous shares of up to 64, and of single numbers (-1: there is none)."""
    of = {share: _Lanes(-64, lanes) for lanes, share, _ in rows}
    of |= {single: _Lanes(1, lanes) for lanes, _, single in rows}
    return {option: recipe for option, recipe in of.items() if option >= 0}


_OPTIONS: Final[Mapping[int, _Lanes]] = {
    0: _Lanes(1, 1, 512, ASCENDING), 6: _Lanes(1, 1, 0, ASCENDING), 7: _Lanes(1, 1, 256, ASCENDING),
    8: _Lanes(1, 1, 256, ASCENDING), 84: _Lanes(1, 1, 0, ASCENDING), 10: _Lanes(4, 32),
    11: _Lanes(1, 16, 32, ASCENDING), 12: _Lanes(1, 16, 16, ASCENDING), 13: _Lanes(1, 16, 16, ASCENDING),
    14: _Lanes(1, 16, 16, ASCENDING),
    **_pairs(
        (2, 48, 49), (2, 56, 57), (2, 62, 63), (2, 102, 95),
        (4, 40, 41), (4, 50, 51), (4, 58, 59), (4, 68, 69), (4, 86, 65), (4, 96, -1), (4, 110, 111),
        (8, 42, 43), (8, 52, 53), (8, 60, 61), (8, 66, 67), (8, 98, 89), (8, 106, -1),
        (16, 44, 45), (16, 54, 55), (16, 72, 81), (16, 90, 91), (16, 100, 101), (16, -1, 35),
        (32, 36, 37), (32, 46, 47), (32, 74, 75), (32, 82, 83), (32, 92, 93),
    ),
}  # fmt: skip
"""By custom option of LANES."""
_SLICES: Final = 5
"""The option of LANES whose 32 lanes have contiguous slices of K, added 16 at a time."""
_SLICED: Final = (32, 16)
_CHAINS: Final = {(CHAINS, 0): (2, 256), (CHAINS, 1): (4, 128), (MAGMA, 0): (1, 0)}
"""Threads of an output, which have contiguous parts of K, and how many numbers each adds at a time (0: all)."""


@dataclass(frozen=True, slots=True)
class CudaCorePlan:
    """One of cuBLASLt's kernels on CUDA cores: its algorithm and custom option, and the parts that K is cut into."""

    algorithm: int
    option: int = 0
    splits: int = 1

    def __str__(self) -> str:
        return f"cores{self.algorithm}/{self.option}/{self.splits}"

    def levels(self, k: int) -> tuple[Level, ...]:
        """The levels of the sum over K, the last one added first; beyond K there are zeros."""
        if self.algorithm == LANES and self.option != _SLICES:
            return _lanes(k, _OPTIONS[self.option], self.splits)
        return _slices(k, *(_SLICED if self.algorithm == LANES else _CHAINS[self.algorithm, self.option]))


def plan_on_cuda_cores(numbers: Mapping[str, int], n: int, rows: int) -> CudaCorePlan | None:
    """The plan that the heuristic's integers stand for where it has `n` outputs and `rows` rows; None where it is not
    known.
    """
    algorithm, option, splits = (numbers[name] for name in ("algo_id", "custom_option", "split_k"))
    plan = CudaCorePlan(algorithm, option, splits)
    if algorithm in (CHAINS, MAGMA):
        return plan if (algorithm, option) in _CHAINS and splits == 1 else None
    if algorithm != LANES or (rows != 1 and n != 1):
        return None
    if option == _SLICES:
        return plan if splits == 1 and rows == 1 else None
    return plan if option in _OPTIONS and (option != _NARROWED or max(n, rows) <= WIDEST) else None


def _slices(k: int, threads: int, block: int) -> tuple[Level, ...]:
    """Contiguous shares of K, each added in blocks."""
    share = ceil(k / threads)
    inner = block or share
    blocks = Level(((ceil(share / inner), inner),), bounded=True)
    return Level(((threads, share),), bounded=True), blocks, Level(((inner, 1),))


def _lanes(k: int, recipe: _Lanes, splits: int) -> tuple[Level, ...]:
    """Lanes that load a vector of each tile of K; a sum begins anew after each chunk of tiles."""
    part = ceil(k / splits)
    vector = recipe.vector if recipe.vector > 0 else min(-recipe.vector, ceil(part / recipe.lanes))
    tile = vector * recipe.lanes
    chunk = recipe.chunk or ceil(part / tile)
    return (
        Level(((splits, part),), bounded=True),
        Level(((recipe.lanes, vector),), recipe.how),
        Level(((ceil(part / (chunk * tile)), chunk * tile),)),
        Level(((chunk, tile), (vector, 1))),
    )
