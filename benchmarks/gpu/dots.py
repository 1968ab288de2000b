"""One `tl.dot` of Triton over blocks of K: `mma.sync` with 16 rows, `wgmma` with 64 on Hopper."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


# Triton reads annotations as code: none but its own.
@triton.jit  # type: ignore[untyped-decorator]
def _dots(  # type: ignore[no-untyped-def] # noqa: ANN202
    a, b, c, d, K: tl.constexpr, M: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr, RESULT: tl.constexpr,  # noqa: ANN001
):  # fmt: skip
    rows, columns, ks = tl.arange(0, M), tl.arange(0, N), tl.arange(0, BLOCK)
    total = tl.load(c + rows[:, None] * N + columns[None, :])
    for start in range(0, K, BLOCK):
        left = tl.load(a + rows[:, None] * K + start + ks[None, :])
        right = tl.load(b + columns[None, :] * K + start + ks[:, None])
        total = tl.dot(left, right, total, input_precision="tf32", out_dtype=RESULT)
    tl.store(d + rows[:, None] * N + columns[None, :], total)


def dot(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, *, block_k: int, fp16: bool) -> torch.Tensor:
    """c + a @ b.T by one warp group; a [M, K], b [N, K], c [M, N]."""
    d = torch.empty_like(c)
    result = tl.float16 if fp16 else tl.float32
    _dots[(1,)](a, b, c, d, a.shape[1], a.shape[0], b.shape[0], block_k, result, num_warps=4)
    return d
