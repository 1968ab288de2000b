"""The shape of a launch, and special registers, which follow from it and from a thread's number.

Blocks are numbered rank by rank, and within a rank x runs fastest. The blocks of a cluster are resident one behind the
other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from moeparity.ptx.formats import Array

WARP = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Of a launch: blocks in each direction, threads of a block in each, and which blocks are resident."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    resident: Array
    """Numbers of the blocks."""
    cluster: tuple[int, int, int] = (1, 1, 1)
    """Blocks of a cluster in each direction."""

    @property
    def threads(self) -> int:
        """Threads of a block, filled up to whole warps."""
        x, y, z = self.block
        return -(-x * y * z // WARP) * WARP

    @property
    def blocks(self) -> int:
        """Blocks of one rank."""
        return product(self.grid)

    @property
    def clusters(self) -> tuple[int, int, int]:
        """Clusters in each direction."""
        x, y, z = (whole // part for whole, part in zip(self.grid, self.cluster, strict=True))
        return x, y, z

    @property
    def mates(self) -> int:
        """Blocks of a cluster."""
        return product(self.cluster)


def product(extent: tuple[int, int, int]) -> int:
    """How many there are in all three directions."""
    return extent[0] * extent[1] * extent[2]


def by_cluster(grid: tuple[int, int, int], cluster: tuple[int, int, int], ranks: int) -> Array:
    """Numbers of all blocks [clusters of all ranks, blocks of a cluster], each cluster's by their rank in it."""
    numbers = np.arange(ranks * product(grid)).reshape(ranks, *grid[::-1])
    split = numbers.reshape(
        ranks, *(n for size, part in zip(grid[::-1], cluster[::-1], strict=True) for n in (size // part, part))
    )
    return split.transpose(0, 1, 3, 5, 2, 4, 6).reshape(-1, product(cluster))


_Value = Callable[[Shape, Array], Array]


def _numbers(value: Any) -> Array:
    return np.asarray(value, dtype=np.uint64).reshape(-1)


def _axes(name: str, many: str, sizes: Callable[[Shape], tuple[int, int, int]], of: _Value) -> dict[str, _Value]:
    def part(axis: int) -> _Value:
        def value(shape: Shape, lanes: Array) -> Array:
            x, y, _ = sizes(shape)
            number = of(shape, lanes)
            return _numbers((number % x, number // x % y, number // (x * y))[axis])

        return value

    def size(axis: int) -> _Value:
        return lambda shape, _: _numbers(sizes(shape)[axis])

    return {f"%{name}.{letter}": part(axis) for axis, letter in enumerate("xyz")} | {
        f"%{many}.{letter}": size(axis) for axis, letter in enumerate("xyz")
    }


def _lane(lanes: Array) -> Array:
    return (lanes % WARP).astype(np.int64)


def _block(shape: Shape, lanes: Array) -> Array:
    return shape.resident[lanes // shape.threads] % shape.blocks


def _cluster(shape: Shape, lanes: Array) -> Array:
    numbers, place = _block(shape, lanes), []
    for size, part in zip(shape.grid, shape.cluster, strict=True):
        place.append(numbers % size // part)
        numbers = numbers // size
    x, y, _ = shape.clusters
    return np.asarray(place[0] + x * (place[1] + y * place[2]))


SPECIAL: dict[str, _Value] = {
    **_axes("tid", "ntid", lambda shape: shape.block, lambda shape, lanes: lanes % shape.threads),
    **_axes("ctaid", "nctaid", lambda shape: shape.grid, _block),
    **_axes("clusterid", "nclusterid", lambda shape: shape.clusters, _cluster),
    **_axes(
        "cluster_ctaid",
        "cluster_nctaid",
        lambda shape: shape.cluster,
        lambda shape, lanes: lanes // shape.threads % shape.mates,
    ),
    "%cluster_ctarank": lambda shape, lanes: _numbers(lanes // shape.threads % shape.mates),
    "%cluster_nctarank": lambda shape, _: _numbers(shape.mates),
    "%is_explicit_cluster": lambda shape, _: np.array([shape.mates > 1]),
    "WARP_SZ": lambda _, __: _numbers(WARP),
    "%laneid": lambda _, lanes: _numbers(_lane(lanes)),
    "%warpid": lambda shape, lanes: _numbers(lanes % shape.threads // WARP),
    "%nwarpid": lambda shape, _: _numbers(shape.threads // WARP),
    "%lanemask_eq": lambda _, lanes: _numbers(1 << _lane(lanes)),
    "%lanemask_lt": lambda _, lanes: _numbers((1 << _lane(lanes)) - 1),
    "%lanemask_le": lambda _, lanes: _numbers((2 << _lane(lanes)) - 1),
    "%lanemask_gt": lambda _, lanes: _numbers(0xFFFFFFFF ^ ((2 << _lane(lanes)) - 1)),
    "%lanemask_ge": lambda _, lanes: _numbers(0xFFFFFFFF ^ ((1 << _lane(lanes)) - 1)),
}
"""Special registers."""
