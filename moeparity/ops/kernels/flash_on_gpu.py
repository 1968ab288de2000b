"""The online softmax of one run of tiles with the bits of a GPU, as FlashAttention 2's forward has them.

FlashAttention 0251105, softmax.h and flash_fwd_kernel.h (read). That these steps give an A100's bits was published for
a dense model's prefill (read; nothing of it was recorded here): products on tensor cores, a tile's onto the rescaled
output; ex2.approx, rcp.approx and fp32 steps that flush subnormals, as -use_fast_math compiles them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from moeparity.numerics.cuda import ex2, flushed
from moeparity.numerics.dtypes import name_of
from moeparity.numerics.fma import fma
from moeparity.numerics.special_functions.functions import approximate
from moeparity.numerics.tensor_core.gemm_orders import TensorCoreOrder
from moeparity.numerics.tensor_core.instructions import Instruction
from moeparity.numerics.tensor_core.product import multiply_add
from moeparity.ops.kernels.key_tiles import Tile

THREADS = 4
"""Of a row of scores: each holds two columns of every eight."""


def attend_on_gpu(
    q: torch.Tensor, tiles: Sequence[Tile], scale: float, order: TensorCoreOrder, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """The output [B, H, T, V] of the keys of some tiles, in the order in which they are walked, and the logarithm of
    the sum of exponentials [B, H, T, 1], both fp32.

    q [B, H, T, D], fp32 numbers that `dtype` (bf16 or fp16) holds, as keys and values are. Each of four threads keeps
    its own sum of a row's exponentials over all tiles; they are joined at the end.
    """
    multiplies = order.instruction(str(name_of(dtype)))
    factor = (torch.tensor(scale).double() * math.log2(math.e)).float()
    highest = torch.full((*q.shape[:3], 1), -math.inf)
    total, out = torch.zeros(*q.shape[:3], THREADS), torch.zeros(*q.shape[:3], tiles[0].v.shape[-1])
    for tile in tiles:
        scores = onto_on_gpu(multiplies, q, tile.k.transpose(2, 3), None).masked_fill(~tile.visible, -math.inf)
        before, highest = highest, torch.maximum(highest, scores.amax(-1, keepdim=True))
        most = torch.where(highest == -math.inf, 0.0, highest)
        shrunk = ex2(flushed(flushed(before - most) * factor))
        p = ex2(flushed(fma(scores, factor, -flushed(most * factor))))
        total = _added(total, shrunk, p)
        out = onto_on_gpu(multiplies, p.to(dtype), tile.v, flushed(out * shrunk))
    joined = flushed(flushed(total[..., :1] + total[..., 2:3]) + flushed(total[..., 1:2] + total[..., 3:]))
    lse = torch.where(highest == -math.inf, 0.0, highest) * scale + joined.double().log().float()
    inverse = approximate("rcp", torch.where(joined == 0, 1.0, joined), ftz=True)
    return flushed(out * inverse), lse


def onto_on_gpu(instruction: Instruction, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None) -> torch.Tensor:
    """Batched c + a @ b by tensor cores; K is filled up with zeros, which change nothing."""
    fill = -a.shape[-1] % instruction.span
    a, b = torch.nn.functional.pad(a, (0, fill)), torch.nn.functional.pad(b, (0, 0, 0, fill))
    return multiply_add(instruction, a, b, c)


def _added(total: torch.Tensor, shrunk: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    """The threads' sums [.., 4], rescaled, with a tile's exponentials [.., S]: the first by an fma, then one by one."""
    pairs = torch.nn.functional.pad(p, (0, -p.shape[-1] % (2 * THREADS))).view(*p.shape[:-1], -1, THREADS, 2)
    columns = pairs.transpose(-3, -2).flatten(-2)
    total = flushed(fma(total, shrunk.expand_as(total), columns[..., 0]))
    for column in columns.unbind(-1)[1:]:
        total = flushed(total + column)
    return total
