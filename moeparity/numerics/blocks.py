"""Runs a kernel on blocks of a fixed number of rows, so that the bits of a row do not depend on the number of rows.

torch's GEMMs choose their order of additions by the number of rows M; on blocks of one size the choice is always the
same. The place of a row within its block could still matter, and this is tried on this machine before the first block.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch

from moeparity.numerics.bits import same_bits
from moeparity.progress import through

Kernel = Callable[[torch.Tensor], torch.Tensor]
"""Rows [..., rows, K] -> [..., rows, N]; mathematically each row by itself."""

MOST_DRAWS, COMPARED = 8, 1 << 16
"""Rows are drawn until so many outputs were compared, since in 16 bits few outputs show another order."""

_TRIED: set[Hashable] = set()


class PlaceError(ValueError):
    """In this kernel, on this machine, a row's bits depend on its place within a block of so many rows."""


def in_blocks(x: torch.Tensor, rows: int, kernel: Kernel, *, key: Hashable) -> torch.Tensor:
    """`kernel` on x [..., M, K], `rows` at a time, the last block padded with zero rows -> [..., M, N].

    Every block is copied to memory of its own, since its place in x would show in its alignment. key: everything on
    which the kernel's choice may depend besides the block: its other operands' shapes and strides, and dtypes.

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
    """A block [..., up to rows, K] padded with zeros to [..., rows, K]; contiguous, in memory of its own."""
    full = block.new_zeros(*block.shape[:-2], rows, block.shape[-1])
    full[..., : block.shape[-2], :] = block
    return full


def try_places(block: torch.Tensor, kernel: Kernel, key: Hashable) -> None:
    """Put one row into every place of a block and compare; once for each shape, dtype, device and number of threads.

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
    # Zero weights show nothing, so the trial does not count for the next ones.
    if bool(result.any()):
        _TRIED.add(tried)


def row_everywhere(block: torch.Tensor, seed: int) -> torch.Tensor:
    """A contiguous tensor like `block` [..., rows, K] with one random row, of widely spread exponents, in every
    place.
    """
    generator = torch.Generator().manual_seed(seed)
    shape = (*block.shape[:-2], 1, block.shape[-1])
    row = torch.randn(shape, generator=generator) * torch.exp2(torch.randint(-6, 7, shape, generator=generator))
    return row.to(block.device, block.dtype).expand_as(block).contiguous()
