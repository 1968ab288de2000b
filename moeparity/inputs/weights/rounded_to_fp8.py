"""Weights that a server itself rounds to fp8 when it loads them."""

from __future__ import annotations

import torch
from torch import Tensor

from moeparity.inputs.weights.codes import nearest_codes
from moeparity.inputs.weights.formats import Block
from moeparity.inputs.weights.packed import spread

_LARGEST = 448.0
"""The largest number of fp8_e4m3."""


def through_fp8(weight: Tensor, block: int, scaled_as: Tensor | None = None) -> Tensor:
    """A matrix as a server has it that rounds weights to fp8 when it loads them: fp32 [rows, columns], each block of
    `block` x `block` (0: all of it) scaled so that its largest number is fp8's largest, and multiplied out again.
    scaled_as: the matrix whose largest numbers make the scales, where these were not made anew; what is larger is
    cut. Anything but a matrix stays as it is.

    As transformers 5.23.0 does it (integrations/finegrained_fp8.py, `Fp8Quantize` and `Fp8Dequantize`), but for blocks
    that are cut short at the ends, which it leaves unquantised. Scales are 448 times a rounded reciprocal there, since
    torch divides a number by a tensor so; engines' kernels divide.
    """
    if weight.dim() != 2:
        return weight
    size = (block or weight.shape[0], block or weight.shape[1])
    codes, scales = in_fp8(weight, size, scaled_as)
    return codes.float() * spread(scales, size, tuple(weight.shape))


def in_fp8(weight: Tensor, block: Block, scaled_as: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Codes (fp8_e4m3) and scales (fp32, one for each block) of a matrix, as `through_fp8` says."""
    largest = amax(weight if scaled_as is None else scaled_as, block)
    factor = torch.where(largest > 0, _LARGEST / torch.where(largest > 0, largest, 1.0), 1.0)
    return nearest_codes(weight.float() * spread(factor, block, tuple(weight.shape)), "e4m3"), 1.0 / factor


def amax(weight: Tensor, block: Block) -> Tensor:
    """The largest size of a number in each block, fp32 [rows of blocks, columns of blocks]."""
    (rows, columns), (high, wide) = weight.shape, block
    padded = torch.nn.functional.pad(weight.float(), (0, -columns % wide, 0, -rows % high)).abs()
    return padded.view(padded.shape[0] // high, high, padded.shape[1] // wide, wide).amax((1, 3))
