"""A block's threads, shuffles and shared memory on Python numbers, and what a launch rule makes of the same row."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Callable

import torch

from moeparity.numerics.summation import sum_axis
from moeparity.ops.norm.launches import Launch
from moeparity.ops.norm.reductions import order_of
from tests.ops.plain import FP32

Row = list[float]


_FP32 = struct.Struct("f")


def f32(x: float) -> float:
    rounded: float = _FP32.unpack(_FP32.pack(x))[0]
    return rounded


def plus(a: float, b: float) -> float:
    """One fp32 addition: fp64 is more than twice as long, so that rounding twice is rounding once."""
    return f32(a + b)


def square_added(total: float, x: float) -> float:
    """fma(x, x, total): the exact sum, rounded to odd in fp64 and then to fp32."""
    square = x * x  # exact: 48 bits
    near = square + total
    of_total = near - square
    missed = (square - (near - of_total)) + (total - of_total)
    if missed and int(math.ldexp(math.frexp(near)[0], 53)) % 2 == 0:
        near = math.nextafter(near, math.copysign(math.inf, missed))
    return f32(near)


def then_added(total: float, x: float) -> float:
    """The square rounded, then added."""
    return plus(total, f32(x * x))


def threads(
    row: Row, count: int, vector: int, step: Callable[[float, float], float] = square_added, offset: int = 0
) -> Row:
    """Each thread of a block walks over its vectors with the block's stride."""
    per_thread = [0.0] * count
    for first in range(0, len(row), count * vector):
        for thread in range(count):
            for j in range(vector):
                at = first + thread * vector + j
                if at < len(row):
                    per_thread[thread] = step(per_thread[thread], row[at])
    return per_thread


def butterfly(warp: Row, offsets: tuple[int, ...]) -> float:
    """__shfl_xor_sync; lanes without a value hold 0. Every lane ends with the same value."""
    count = 2 * max(offsets)
    lanes = warp + [0.0] * (count - len(warp))
    for offset in offsets:
        lanes = [plus(lanes[i], lanes[i ^ offset]) for i in range(count)]
    assert len(set(lanes)) == 1
    return lanes[0]


def down(warp: Row, offsets: tuple[int, ...]) -> float:
    """__shfl_down_sync; lanes beyond the warp's own are not there. Lane 0 holds the sum."""
    lanes = list(warp)
    for offset in offsets:
        lanes = [plus(x, lanes[i + offset]) if i + offset < len(lanes) else x for i, x in enumerate(lanes)]
    return lanes[0]


HIGH, LOW = (16, 8, 4, 2, 1), (1, 2, 4, 8, 16)


def warps(per_thread: Row) -> list[Row]:
    return [per_thread[i : i + 32] for i in range(0, len(per_thread), 32)]


def in_turn(values: Row) -> float:
    total = 0.0
    for value in values:
        total = plus(total, value)
    return total


def twice_by(offsets: tuple[int, ...], per_thread: Row) -> float:
    """A butterfly in each warp, the results in shared memory, a butterfly of them."""
    return butterfly([butterfly(warp, offsets) for warp in warps(per_thread)], offsets)


def row_of(width: int, seed: int) -> Row:
    """fp32 numbers of wide exponents, whose squares add up to other bits in other orders, with fma or without."""
    draw = random.Random(seed)  # noqa: S311
    return [f32(draw.gauss(0, 1) * 2 ** draw.randint(-3, 3)) for _ in range(width)]


def ours(name: str, row: Row, rows: int, ranks: int) -> torch.Tensor:
    """What a rule makes of one of so many rows."""
    return sums(name, torch.tensor([row], dtype=FP32), rows, ranks)


def sums(name: str, x: torch.Tensor, rows: int, ranks: int) -> torch.Tensor:
    """The same for each row of x."""
    order = order_of(name, Launch(hidden=x.shape[-1], rows=rows, ranks=ranks))
    if order.fma:
        return sum_axis(x, order, -1, accumulate=FP32, times=x)
    return sum_axis(x * x, order, -1, accumulate=FP32)
