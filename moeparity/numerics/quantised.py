"""Numbers on a grid of 8 or 4 bits with scales, and GEMMs of their codes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch

from moeparity.numerics.block_scales import (
    FP4,
    INT4,
    TWO_LEVELS,
    TWO_LEVELS_DIVIDED,
    Block,
    Grid,
    factors_of,
    scales_of,
)
from moeparity.numerics.fma import fma
from moeparity.numerics.rounding import add, rounded
from moeparity.numerics.scale_search import STEPS, multiplied, percentile, shrunk, swept

Tensor = torch.Tensor
Product = Callable[[Tensor, Tensor], Tensor]
"""Codes [M, K] times codes [N, K], added up -> fp32 [M, N]."""


@dataclass(frozen=True, slots=True)
class Codes:
    """A matrix on a grid: each number is its code times the scale of the block in which it lies.

    codes: [rows, columns]. block: how many rows and columns share a scale. scales: fp32, one for each block, [rows /
    block[0], columns / block[1]], rounded up.
    """

    codes: Tensor
    scales: Tensor
    block: Block

    def by_row(self, column: int) -> Tensor:
        """The scale of each row in the block of a column, [rows]."""
        scales = self.scales[:, column // self.block[1]]
        return scales.repeat_interleave(self.block[0])[: len(self.codes)]

    def multiplied_out(self) -> Tensor:
        """Codes times scales, fp32 [rows, columns]."""
        return self.codes.float() * _spread(self.scales, self.block, self.codes.shape)


def quantised(x: Tensor, grid: Grid) -> Codes:
    """x [rows, columns] on a grid.

    All in the grid's arithmetic: a magnitude of a block, at least the floor, over the largest code is the scale. A
    block with a NaN is NaN as a whole in fp8, unless its magnitude is given. Sources: `moeparity.ops.quantised`.
    """
    rows, columns = x.shape
    block = (grid.block[0] or max(rows, 1), grid.block[1] or max(columns, 1))
    blocks = _blocks(x, block)
    magnitudes = _at_least(_magnitudes(blocks, grid), grid)
    scales = scales_of(magnitudes, grid, blocks.abs().max())
    codes = _codes(x.to(grid.arithmetic), magnitudes, scales, grid, partial(_spread, block=block, shape=x.shape))
    return Codes(codes, scales.float(), block)


def _magnitudes(blocks: Tensor, grid: Grid) -> Tensor:
    """The number that stands for the largest of each block, [rows of blocks, columns of blocks], in the arithmetic."""
    way, number = grid.magnitude.way, grid.magnitude.number
    wide = blocks.to(grid.arithmetic)
    if way == "multiplied":
        return multiplied(blocks, grid.dtype).to(wide.dtype)
    if way == "swept":
        return swept(blocks, grid.top, partial(to_codes, dtype=grid.dtype)).to(wide.dtype)
    if way == "percentile":
        return percentile(blocks, number).to(wide.dtype)
    largest = wide.abs().amax(-1)
    if way == "given":
        return torch.full_like(largest, number)
    if way == "largest":
        return largest if number == 1 else largest * number

    # llm-compressor searches before there is a scale of the tensor.
    one_level = replace(grid, scale="fp32") if grid.scale in (TWO_LEVELS, TWO_LEVELS_DIVIDED) else grid

    def on_grid(magnitudes: Tensor) -> Tensor:
        magnitudes = _at_least(magnitudes, grid)
        scales = scales_of(magnitudes, one_level, largest.max())
        codes = _codes(wide, magnitudes, scales, one_level, _of_each)
        return codes.to(wide.dtype) * _of_each(scales)

    return shrunk(wide, largest, on_grid, STEPS[way])


def _at_least(magnitudes: Tensor, grid: Grid) -> Tensor:
    return torch.maximum(magnitudes, magnitudes.new_tensor(grid.floor))


def _codes(wide: Tensor, magnitudes: Tensor, scales: Tensor, grid: Grid, spread: Callable[[Tensor], Tensor]) -> Tensor:
    """Numbers over the scales of their blocks, rounded to codes; spread: what blocks have, for each number."""
    if grid.quotient == "divided":
        scaled = wide / spread(scales)
    elif grid.quotient == "from_largest" and grid.scale == "fp32":
        scaled = wide * spread(factors_of(magnitudes, grid))
    else:
        scaled = wide * spread(1 / scales)
    return to_codes(scaled.float(), grid.dtype)


def codes_of(numbers: Tensor, scales: Tensor, width: int, dtype: torch.dtype) -> Codes:
    """The codes that numbers [rows, columns] were multiplied out of; scales: fp32 [rows, groups of `width` columns].

    A product of code and scale that was rounded to 8 significant bits or more, and once more to 8 or more, still lies
    nearest to its code: the codes of fp8_e4m3 have 4, and those of int8 are 127 at most. So no bit of a code is lost in
    bf16 and fp32. In fp16, whose range ends at 2^-24, codes of fp8 can be.
    """
    by_column = _spread(scales, (1, width), numbers.shape)
    scaled = torch.where(by_column == 0, 0.0, numbers.float() / by_column)
    # With a zero point taken from it, a whole number of 4 bits lies between -15 and 15.
    codes = scaled.round().to(torch.int8) if dtype == INT4 else to_codes(scaled, dtype)
    return Codes(codes, scales, (1, width))


def by_scale(numbers: Tensor, scale: Tensor, dtype: torch.dtype, quotient: str) -> Codes:
    """x [rows, columns] on the grid of one scale that is known before, fp32 []; quotient: `divided` or another."""
    wide = numbers.float()
    scaled = wide / scale if quotient == "divided" else wide * (1 / scale)
    return Codes(to_codes(scaled, dtype), scale.reshape(1, 1), (max(len(wide), 1), max(wide.shape[1], 1)))


def by_factor(numbers: Tensor, factor: Tensor, dtype: torch.dtype) -> Codes:
    """x [rows, columns] times a number that is known before, fp32 []; the scale is 1 over it."""
    wide = numbers.float()
    scale = (1 / factor).reshape(1, 1).to(wide.device)
    return Codes(to_codes(wide * factor, dtype), scale, (max(len(wide), 1), max(wide.shape[1], 1)))


def to_codes(scaled: Tensor, dtype: torch.dtype) -> Tensor:
    """fp32 numbers as codes: nearest, ties to even, too large ones the end of the range (-128 in int8)."""
    if dtype in (torch.int8, INT4):
        return scaled.round().clamp(*((-128, 127) if dtype == torch.int8 else (-8, 7))).to(torch.int8)
    if dtype == FP4:
        # Steps of 1/2 below 2, of 1 below 4, of 2 up to 6; half a step above a code with an odd last bit is the next.
        step = torch.where(scaled.abs() < 2, 0.5, torch.where(scaled.abs() < 4, 1.0, 2.0))
        return ((scaled / step).round() * step).clamp(-6.0, 6.0)
    return to_fp8(scaled, dtype, saturates=True)


def to_fp8(x: Tensor, dtype: torch.dtype, *, saturates: bool) -> Tensor:
    """x rounded to nearest even in an 8-bit `dtype`; fp64 by way of fp32.

    Values that round above the largest number, infinities included, become the largest number (__NV_SATFINITE); in
    float8_e5m2 they become infinity unless `saturates` is True. NaN stays NaN.
    """
    if saturates or dtype == torch.float8_e4m3fn:
        # Older casts of torch gave NaN here.
        largest = torch.finfo(dtype).max
        x = x.clamp(-largest, largest)
    return x.to(torch.float32).to(dtype)


def scaled_product(
    x: Codes,
    weight: Codes,
    bias: Tensor | None,
    multiply: Product,
    *,
    part: int | None,
    scaling: str,
    addition: str,
    output: torch.dtype,
) -> Tensor:
    """x [M, K] times weight [N, K], with scales and bias [N] -> [M, N] in `output`, as `moeparity.ops.quantised` says.

    part: so many of K are added up before their scales are applied; None: all, in an epilogue. addition: `fma` or
    `rounded`.
    """
    k, flat = x.codes.shape[-1], part is None
    size = part or max(k, 1)
    # From +0, as an accumulator that is cleared.
    total = x.scales.new_zeros(len(x.codes), len(weight.codes)) if not flat else None
    if flat and bias is not None:
        total = bias.float().expand(len(x.codes), -1)
    for start in range(0, k, size):
        sums = multiply(
            x.codes[:, start : start + size].contiguous(), weight.codes[:, start : start + size].contiguous()
        )
        left, right = _factors(sums, x.by_row(start)[:, None], weight.by_row(start)[None, :], scaling)
        if total is None:
            total = left * right
        else:
            total = fma(left, right, total) if addition == "fma" else left * right + total
    assert total is not None, "a GEMM has inputs"
    result = rounded(total, output)
    return result if flat or bias is None else add(result, rounded(bias, output), output)


def _factors(sums: Tensor, x_scales: Tensor, weight_scales: Tensor, scaling: str) -> tuple[Tensor, Tensor]:
    """The two factors whose product is added."""
    if scaling == "both":
        return x_scales * weight_scales, sums
    first, last = (x_scales, weight_scales) if scaling == "activation_first" else (weight_scales, x_scales)
    return sums * first, last


def _blocks(x: Tensor, block: Block) -> Tensor:
    """The numbers of each block, one block after another, [rows of blocks, columns of blocks, numbers of a block];
    zeros where it is cut short.
    """
    (rows, columns), (high, wide) = x.shape, block
    padded = torch.nn.functional.pad(x, (0, -columns % wide, 0, -rows % high))
    apart = padded.reshape(padded.shape[0] // high, high, padded.shape[1] // wide, wide)
    return apart.transpose(1, 2).flatten(-2, -1)


def _of_each(blocks: Tensor) -> Tensor:
    return blocks.unsqueeze(-1)


def _spread(blocks: Tensor, block: Block, shape: torch.Size) -> Tensor:
    """The value of each number's block [rows, columns]."""
    return blocks.repeat_interleave(block[0], 0)[: shape[0]].repeat_interleave(block[1], 1)[:, : shape[1]]
