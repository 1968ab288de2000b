"""A kernel run on blocks of a fixed number of rows, so that no bit of a row depends on how many others there are.

torch's GEMMs choose how they add by the number of rows M. On blocks of one size that choice is always the same one;
what is left is the place of a row within its block, which is tried on the machine at hand before the first block is
computed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch

from moeparity.numerics.bits import same_bits
from moeparity.progress import through

Kernel = Callable[[torch.Tensor], torch.Tensor]
"""Rows [..., rows, K] -> [..., rows, N], each by itself in exact arithmetic."""

MOST_DRAWS, COMPARED = 8, 1 << 16
"""Rows are drawn anew until so many outputs were compared: another order of a sum shows in few 16-bit ones."""

_TRIED: set[Hashable] = set()


class PlaceError(ValueError):
    """A row's bits depend on its place within a block of so many rows, in this kernel on this machine."""


def in_blocks(x: torch.Tensor, rows: int, kernel: Kernel, *, key: Hashable) -> torch.Tensor:
    """`kernel` on x [..., M, K], `rows` at a time, the last block filled up with rows of zeros -> [..., M, N].

    Every block is copied to memory of its own: where it lies in x would show in its alignment. `key` names all that
    the kernel's choice may depend on beside the block: its other operands' shapes and strides, and dtypes.

    Raises PlaceError.
    """
    out = None
    starts = range(0, x.shape[-2], rows)
    for start in through(starts, [1] * len(starts)):
        block = filled(x[..., start : start + rows, :], rows)
        if out is None:
            try_places(block, kernel, key)
        result = kernel(block)
        if out is None:
            out = result.new_empty(*x.shape[:-1], result.shape[-1])
        out[..., start : start + rows, :] = result[..., : x.shape[-2] - start, :]
    return kernel(x) if out is None else out


def filled(block: torch.Tensor, rows: int) -> torch.Tensor:
    """A block [..., up to rows, K] filled up with zeros to [..., rows, K]; in memory of its own, contiguous."""
    full = block.new_zeros(*block.shape[:-2], rows, block.shape[-1])
    full[..., : block.shape[-2], :] = block
    return full


def try_places(block: torch.Tensor, kernel: Kernel, key: Hashable) -> None:
    """Put one row in every place of a block; once for each shape, dtype, device and number of threads.

    Raises PlaceError.
    """
    rows = block.shape[-2]
    tried = (key, tuple(block.shape), block.dtype, block.device, torch.get_num_threads())
    if rows == 1 or tried in _TRIED:
        return
    seed, compared = 0, 0
    while seed < MOST_DRAWS and compared < COMPARED:
        result = kernel(row_everywhere(block, seed))
        if not same_bits(result, result[..., :1, :].expand_as(result).contiguous()):
            raise PlaceError(
                f"in blocks of {rows} rows of {block.shape[-1]} inputs, torch's kernel on this machine gives a row "
                "other bits by its place in the block. Set another number; 1 is always right, and slow."
            )
        seed, compared = seed + 1, compared + result.numel()
    # Zero weights tell nothing of the next ones.
    if bool(result.any()):
        _TRIED.add(tried)


def row_everywhere(block: torch.Tensor, seed: int) -> torch.Tensor:
    """A block like `block` [..., rows, K] with one drawn row of many exponents in every place, contiguous."""
    generator = torch.Generator().manual_seed(seed)
    shape = (*block.shape[:-2], 1, block.shape[-1])
    row = torch.randn(shape, generator=generator) * torch.exp2(torch.randint(-6, 7, shape, generator=generator))
    return row.to(block.device, block.dtype).expand_as(block).contiguous()
