"""Liger's Triton kernels in Triton's interpreter on CPU, run by test_liger.py.

The interpreter makes every elementwise step in numpy, in the step's own dtype. Three things are put in its way's place:
numbers go to a kernel as fp32, as a GPU's launcher hands them over; libdevice's rsqrt is 1 / sqrt; and slots are sorted
by expert in torch, which the interpreter takes ten seconds for.
"""

from __future__ import annotations

import os

os.environ |= {"TRITON_INTERPRET": "1", "LIGER_FUSED_MOE_AUTOTUNE": "0"}

from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from liger_kernel.ops import fused_add_rms_norm, fused_moe, rms_norm
from liger_kernel.ops.rope import LigerRopeFunction
from liger_kernel.ops.swiglu import LigerSiLUMulFunction
from torch import Tensor
from triton.runtime import interpreter

from tests.engines.live import answer

_converted = interpreter._implicit_cvt


def _as_launched(argument: Any) -> Any:
    if isinstance(argument, float):
        return tl.tensor(interpreter.TensorHandle(np.array([argument], np.float32), tl.float32), tl.float32)
    return _converted(argument)


@triton.jit  # type: ignore[untyped-decorator]
def _rsqrt(x: Any) -> Any:
    return tl.rsqrt(x)


def _sorted_by_expert(ids: Tensor, experts: int) -> tuple[Tensor, ...]:
    """For `compute_routing_metadata`: counts, first rows, tokens, slots, their places, tiles, tiles' experts."""
    slots = ids.flatten().argsort(stable=True)
    counts = torch.bincount(ids.flatten(), minlength=experts)
    first = torch.cat((counts.new_zeros(1), counts.cumsum(0)))
    block = fused_moe.BLOCK_M_TOKEN
    tiles = [(int(first[e]) + i, e) for e in range(experts) for i in range(0, int(counts[e]), block)]
    starts, owners = (counts.new_tensor(column) for column in zip(*tiles, strict=True))
    fields = (counts, first, slots // ids.shape[1], slots, slots.argsort(), starts, owners)
    return tuple(x.int() for x in fields)


interpreter._implicit_cvt = _as_launched
fused_moe.compute_routing_metadata = _sorted_by_expert
rms_norm.rsqrt = fused_add_rms_norm.rsqrt = _rsqrt


def norm(x: Tensor, weight: Tensor, eps: float, offset: float, mode: str) -> dict[str, Tensor]:
    return {"output": rms_norm.LigerRMSNormFunction.apply(x, weight, eps, offset, mode, False, None)}


def add_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float, mode: str) -> dict[str, Tensor]:
    function = fused_add_rms_norm.LigerFusedAddRMSNormFunction
    output, added = function.apply(x, residual, weight, eps, 0.0, mode, False)
    return {"output": output, "sum": added}


def swiglu(gate: Tensor, up: Tensor) -> dict[str, Tensor]:
    return {"output": LigerSiLUMulFunction.apply(gate, up)}


def rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> dict[str, Tensor]:
    """q and k [B, T, H, D], which the kernel overwrites -> [B, H, T, D]."""
    turned = LigerRopeFunction.apply(q.transpose(1, 2), k.transpose(1, 2), cos, sin)
    return {"q": turned[0], "k": turned[1]}


def combine(rows: Tensor, weights: Tensor) -> dict[str, Tensor]:
    """rows [N, K, H] by slot, weights [N, K] -> [N, H]."""
    count, k, hidden = rows.shape
    places = torch.arange(count * k, dtype=torch.int32)
    return {"output": fused_moe._token_aggregation(rows.flatten(0, 1), weights.flatten(), places, count, k, hidden)}


def moe(x: Tensor, gate_up: Tensor, down: Tensor, ids: Tensor, weights: Tensor) -> dict[str, Tensor]:
    """x [N, H], ids and weights [N, K] -> [N, H]."""
    return {"output": fused_moe.LigerFusedMoEFunction.apply(x, gate_up, down, ids.int(), weights)}


if __name__ == "__main__":
    answer({"norm": norm, "add_norm": add_norm, "swiglu": swiglu, "rope": rope, "combine": combine, "moe": moe})
