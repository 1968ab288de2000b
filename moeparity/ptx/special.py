"""The shape of a launch, and special registers, which follow from it and from a thread's number."""

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
    """Numbers of the blocks, x fastest."""

    @property
    def threads(self) -> int:
        """Threads of a block, filled up to whole warps."""
        x, y, z = self.block
        return -(-x * y * z // WARP) * WARP


_Value = Callable[[Shape, Array], Array]


def _numbers(value: Any) -> Array:
    return np.asarray(value, dtype=np.uint64).reshape(-1)


def _axes(name: str, sizes: Callable[[Shape], tuple[int, int, int]], of: _Value) -> dict[str, _Value]:
    def part(axis: int) -> _Value:
        def value(shape: Shape, lanes: Array) -> Array:
            x, y, _ = sizes(shape)
            number = of(shape, lanes)
            return _numbers((number % x, number // x % y, number // (x * y))[axis])

        return value

    def size(axis: int) -> _Value:
        return lambda shape, _: _numbers(sizes(shape)[axis])

    return {f"%{name}.{letter}": part(axis) for axis, letter in enumerate("xyz")} | {
        f"%n{name}.{letter}": size(axis) for axis, letter in enumerate("xyz")
    }


def _lane(lanes: Array) -> Array:
    return (lanes % WARP).astype(np.int64)


SPECIAL: dict[str, _Value] = {
    **_axes("tid", lambda shape: shape.block, lambda shape, lanes: lanes % shape.threads),
    **_axes("ctaid", lambda shape: shape.grid, lambda shape, lanes: shape.resident[lanes // shape.threads]),
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
