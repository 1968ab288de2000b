"""What tests of flash attention share: a node's values, data, and its output by `scalar`, one number at a time."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch
from torch import Tensor

from moeparity.ops.kernels.attention import attention
from tests.ops.plain import BF16, FP16, FP32, assert_bits
from tests.ops.scalar import F32, dot, flash_row, runs_of

HEADS, TOKENS, WIDTH, BLOCK = 2, 7, 24, 3
DTYPES = {"bf16": BF16, "fp16": FP16, "fp32": FP32}
SITES = ("probabilities", "output", "split")
SINKS = torch.tensor([0.75, -1.25])
"""One that is often above a row's scores, one that seldom is; both have few bits."""
PLAIN: dict[str, Any] = {
    "implementation": "flash",
    "kv_layout": "projected",
    "scale_on": "scores",
    "scores_order": "native",
    "values_order": "native",
    "kv_block": BLOCK,
    "kv_order": "descending",
    "exponential": "exp2_fma",
    "rescale_above": 0,
    "contraction": "none",
    "row_sum": "sequential",
    "normalize": "reciprocal",
    "tf32": "no",
    "splits": 1,
    "split_by": "tiles",
    "split": "fp32",
    "merge": "at_once",
    "splits_order": "sequential(fma)",
    "probabilities": "bf16",
    "output": "fp32",
}


def operands(block: int, dtype: torch.dtype = BF16) -> tuple[Tensor, Tensor, Tensor]:
    """q, k of quarters other than 0; v of a power of two in every block-th row of each column: every product of a tile,
    wherever it starts, is one term.
    """
    generator = torch.Generator().manual_seed(7)
    shape = (2, HEADS, TOKENS, WIDTH)
    q, k = (torch.randint(1, 7, shape, generator=generator) / 4 for _ in range(2))
    q, k = (x * (torch.randint(0, 2, shape, generator=generator) * 2 - 1) for x in (q, k))
    first = torch.randint(0, min(block, TOKENS), (2, 1, HEADS, WIDTH), generator=generator)
    rows = torch.arange(TOKENS).view(1, -1, 1, 1)
    powers = 2.0 ** torch.randint(-3, 4, (2, TOKENS, HEADS, WIDTH), generator=generator)
    v = torch.where((rows - first) % block == 0, powers, 0.0)
    return q.to(dtype), k.to(dtype), v.to(dtype)


def scores_by_hand(q: Tensor, k: Tensor, at: dict[str, Any]) -> np.ndarray:
    """Products of queries and keys, exact where torch's GEMM makes them, else one number at a time."""
    if at["scores_order"] == "native":
        exact = q.double() @ k.double().transpose(2, 3)
        assert torch.equal(exact, exact.float().double())
        return exact.float().numpy()
    queries, keys = q.float().numpy(), k.float().numpy()
    queries = queries * F32(WIDTH**-0.5) if at["scale_on"] == "query" else queries
    rows = np.zeros((*q.shape[:3], k.shape[2]), np.float32)
    for b, h, t, j in np.ndindex(rows.shape):
        rows[b, h, t, j] = dot(list(queries[b, h, t]), list(keys[b, h, j]), at["scores_order"])
    return rows


def by_hand(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor,
    at: dict[str, Any],
    window: int = TOKENS,
    sinks: Tensor | None = None,
) -> Tensor:
    rows = scores_by_hand(q, k, at)
    out = np.zeros((2, TOKENS, HEADS, WIDTH), np.float32)
    for b, h, t in itertools.product(range(2), range(HEADS), range(TOKENS)):
        visible = [t - window < j <= t and bool(mask[b, j]) for j in range(TOKENS)]
        scores = [F32(s) if see else None for s, see in zip(rows[b, h, t], visible, strict=True)]
        runs = runs_of(t, TOKENS, window, at)
        sink = None if sinks is None else F32(float(sinks[h]))
        out[b, t, h] = flash_row(scores, v[b, :, h].float().numpy(), WIDTH**-0.5, at, runs, sink)
    return torch.from_numpy(out).flatten(2).to(DTYPES[at["output"]])


def check(
    at: dict[str, Any],
    dtype: torch.dtype = BF16,
    mask: Tensor | None = None,
    window: int | None = None,
    sinks: Tensor | None = None,
    data: tuple[Tensor, Tensor, Tensor] | None = None,
) -> Tensor:
    q, k, v = data or operands(at["kv_block"], dtype)
    mask = torch.ones(2, TOKENS, dtype=torch.bool) if mask is None else mask
    dtypes_of = at | {site: DTYPES[at[site]] for site in SITES}
    ours = attention(
        q, k, v.transpose(1, 2), mask, w={} if sinks is None else {"sinks": sinks}, p={"window": window}, at=dtypes_of
    )
    assert_bits(ours, by_hand(q, k, v, mask, at, window or TOKENS, sinks))
    return ours


def dense(dtype: torch.dtype, *, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v of full mantissas, whose sums every order makes another number of."""
    generator = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(2, HEADS, TOKENS, WIDTH, generator=generator).to(dtype) for _ in range(2))
    return q, k, torch.randn(2, TOKENS, HEADS, WIDTH, generator=generator).to(dtype)
