"""Magnitudes of blocks that libraries for quantised weights search for, in place of the largest number."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from moeparity.numerics.block_scales import INT4, LARGEST

Tensor = torch.Tensor
Rounded = Callable[[Tensor], Tensor]
"""Magnitudes of blocks [rows, columns] -> the numbers of the blocks as their grid has them [rows, columns, numbers]."""

_NORM = 2.4
_FROM, _TO, _MULTIPLIERS = 0.25, 4.0, 39
_ZERO = 1.0 / (1 << 24)
_BINS = 2048


class Steps(NamedTuple):
    """How a search by shrinking goes: it tries `times` multiples of the largest magnitude, from `first` times it in
    steps of `first` / `of`, and ends when no block has become better `patience` times in a row.
    """

    first: float
    times: int
    of: float
    patience: int


STEPS = {"shrunk": Steps(1.0, 20, 100.0, 5), "expanded": Steps(1.8, 111, 200.0, 1000)}
"""llm-compressor's observers `memoryless_mse` and `nvfp4_expanded_mse`."""


def shrunk(blocks: Tensor, largest: Tensor, on_grid: Rounded, steps: Steps) -> Tensor:
    """Of smaller and smaller multiples of the largest magnitude, such as 1.00, 0.99 .. 0.81 times it, the one with the
    least sum of errors to the power of 2.4, all in the dtype of the blocks [rows, columns, numbers]; the first of equal
    ones.

    As llm-compressor 0.14.0.1 does it without Triton (observers/mse_quant.py `_grid_search_mse`, the numbers of
    observers/mse.py); its Triton kernel, which runs on a GPU, has a patience for each block.
    """
    largest, waited = largest * steps.first, 0
    chosen = largest.clone()
    least = torch.full_like(largest, torch.finfo(largest.dtype).max)
    for step in range(steps.times):
        smaller = largest * (1 - step / steps.of)
        error = (on_grid(smaller) - blocks).abs().pow(_NORM).unsqueeze(0).sum((0, -1))
        better = error < least
        waited = 0 if bool(better.any()) else waited + 1
        if waited == steps.patience:
            break
        least, chosen = torch.where(better, error, least), torch.where(better, smaller, chosen)
    return chosen


def multiplied(blocks: Tensor, dtype: torch.dtype) -> Tensor:
    """Of 39 numbers from 0.25 to 4 times the largest magnitude of blocks [rows, columns, numbers], the one with the
    least sum of squared errors in fp32; the first of equal ones, 0.25 times it where an error is NaN.

    Magnitudes are rounded to the dtype of the blocks, that of a single block only in the end, where torch takes it for
    a number of Python. As ModelOpt 0.47.0 does it (quantization/calib/mse.py `MseCalibrator`, the numbers of its
    configuration), with its own rounding to fp8 or whole numbers (quantization/tensor_quant.py `_fp8_eager`,
    `_tensor_quant`) and not that of the grid.
    """
    wide, largest = blocks.float(), blocks.abs().amax(-1)
    start = largest.float() if largest.numel() == 1 else largest
    multipliers = torch.linspace(_FROM, _TO, steps=_MULTIPLIERS, device=blocks.device)
    errors = [_squares(wide, (start * multiplier).float(), dtype).sum(-1) for multiplier in multipliers]
    return (largest * multipliers[torch.stack(errors).argmin(0)]).to(blocks.dtype)


def _squares(wide: Tensor, magnitudes: Tensor, dtype: torch.dtype) -> Tensor:
    top = LARGEST[dtype]
    if dtype in (torch.int8, INT4):
        factors = torch.where(magnitudes <= _ZERO, 0.0, top / magnitudes).unsqueeze(-1)
        codes = (wide * factors).round().clamp(-top, top)
        numbers = codes / torch.where(factors == 0, 1.0, factors)
    else:
        factors = (top / torch.where(magnitudes <= _ZERO, 1.0, magnitudes)).unsqueeze(-1)
        numbers = (wide * factors).clamp(-top, top).to(dtype).float() * (1 / factors)
    return torch.nn.functional.mse_loss(wide, numbers, reduction="none")


def swept(blocks: Tensor, top: float, to_codes: Rounded) -> Tensor:
    """Of the positive numbers of fp8_e4m3 over 448 times the largest magnitude of all blocks [rows, columns, numbers],
    the one with the least sum of squared errors in fp32, the smallest of equal ones. to_codes: rounds numbers over a
    scale to codes, of which `top` is the largest.

    As ModelOpt 0.47.0 does it for NVFP4 (quantization/calib/mse.py `NVFP4MSECalibrator`, its Triton kernel
    kernels/quantization/gemm/nvfp4_fp8_sweep.py); on a GPU additions may be contracted and in another order.
    """
    sizes = blocks.float().abs()
    whole = sizes.max()
    numbers = torch.arange(1, 127, dtype=torch.uint8, device=blocks.device).view(torch.float8_e4m3fn).float() / 448
    chosen, least = torch.zeros_like(sizes[..., 0]), torch.full_like(sizes[..., 0], torch.inf)
    for number in numbers:
        scale = number * whole / top
        scale = torch.where(scale == 0, 1.0, scale)
        error = ((sizes - to_codes(sizes / scale).float() * scale) ** 2).sum(-1)
        better = error < least
        least, chosen = torch.where(better, error, least), torch.where(better, number, chosen)
    return whole * chosen


def percentile(blocks: Tensor, percent: float) -> Tensor:
    """The lower end of the first of 2,048 equal bins from 0 to the largest magnitude up to which at least so many
    percent of a block's magnitudes lie, fp32 [rows, columns]; the largest where it is not finite.

    As ModelOpt 0.47.0 does it for weights (quantization/calib/histogram.py `calibrate_weights`), in numpy.
    """
    sizes = blocks.float().abs()
    chosen = sizes.amax(-1)
    for place in chosen.isfinite().nonzero().tolist():
        numbers = sizes[tuple(place)].cpu().numpy()
        counts, edges = np.histogram(numbers, bins=_BINS, range=(0, numbers.max()))
        below = np.searchsorted(np.cumsum(counts / counts.sum()), percent / 100)
        chosen[tuple(place)] = edges[below].item()
    return chosen
