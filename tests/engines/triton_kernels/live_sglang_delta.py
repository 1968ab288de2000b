"""SGLang 0.5.23's Triton kernels of gated delta nets, run without a GPU (`backend`), each launched by SGLang's own
function.
"""

from __future__ import annotations

from contextlib import nullcontext
from unittest.mock import patch

from tests.engines.triton_kernels import backend  # isort: skip
import torch
import triton
from torch import Tensor

from tests.engines.triton_kernels.alone import engine
from tests.engines.triton_kernels.widest import exp, on_h100, safe_exp, widest

OPS = "sglang.kernels.ops.attention"
NAMES = (
    *(
        f"fla.{name}"
        for name in ("chunk", "chunk_delta_h", "chunk_fwd", "chunk_o", "cumsum", "fused_recurrent", "index")
    ),
    *(f"fla.{name}" for name in ("l2norm", "utils", "wy_fast")),
    "linear.fused_gdn_gating",
)
VALUES = {
    f"{OPS}.fla.op": {"exp": exp, "exp2": None, "safe_exp": safe_exp},
    "sglang.kernels.jit.utils": {"is_arch_support_pdl": lambda: False},
    "sglang.srt.utils.common": {"torch_release": (2, 13)},
}
CONV = "sglang.kernels.ops.mamba.causal_conv1d_triton"
with (
    on_h100(),
    patch.object(triton, "autotune", widest),
    engine([*(f"{OPS}.{name}" for name in NAMES), CONV], values=VALUES, absent=("einops",)),
):
    from sglang.kernels.ops.attention.fla import chunk, chunk_delta_h, fused_recurrent, utils
    from sglang.kernels.ops.attention.linear import fused_gdn_gating
    from sglang.kernels.ops.mamba import causal_conv1d_triton

utils.custom_device_ctx = lambda _: nullcontext()

Found = dict[str, Tensor]


def prefill(
    qkv: Tensor, a: Tensor, b: Tensor, a_log: Tensor, dt_bias: Tensor, state: Tensor, heads: int, width: int
) -> Found:
    """qkv [T, all channels], a, b [T, HV], state fp32 [1, HV, V, K] -> [T, HV, V] and the state behind them."""
    g, beta = fused_gdn_gating.fused_gdn_gating(a_log, a, b, dt_bias)
    keys = heads * width
    parts = qkv.split([keys, keys, qkv.shape[-1] - 2 * keys], -1)
    widths = (width, width, state.shape[2])
    q, k, v = (x.contiguous().view(1, len(qkv), -1, size) for x, size in zip(parts, widths, strict=True))
    pool, slots = state.clone(), torch.zeros(1, dtype=torch.int32)
    with backend.in_order(), backend.scalar_ranges(chunk_delta_h):
        out = chunk.chunk_gated_delta_rule(
            q, k, v, g, beta, initial_state=pool, initial_state_indices=slots, use_qk_l2norm_in_kernel=True
        )[0]
    return {"output": out[0], "state": pool}


def decode(qkv: Tensor, a: Tensor, b: Tensor, a_log: Tensor, dt_bias: Tensor, state: Tensor, width: int) -> Found:
    """A token of each of B sequences: qkv [B, all channels], state [B, HV, V, K] -> [B, HV, V] and the states."""
    pool, out = state.clone(), torch.empty(len(qkv), 1, *state.shape[1:3], dtype=qkv.dtype)
    indices = torch.arange(len(pool), dtype=torch.int32)
    fused_recurrent.fused_recurrent_gated_delta_rule_packed_decode(
        qkv, a, b, a_log, dt_bias, width**-0.5, pool, out, indices, use_qk_l2norm_in_kernel=True
    )
    return {"output": out[:, 0], "state": pool}


def conv_step(x: Tensor, weight: Tensor, window: Tensor) -> Found:
    """A token of each of B sequences: x [B, C], weight [C, taps], window [B, C, taps - 1] -> [B, C], the windows."""
    states = window.transpose(1, 2).contiguous().transpose(1, 2)
    indices = torch.arange(len(window), dtype=torch.int32)
    update = causal_conv1d_triton.causal_conv1d_update
    out = update(x.clone(), states, weight, None, "silu", conv_state_indices=indices)
    return {"output": out, "window": states}


if __name__ == "__main__":
    backend.answer({"prefill": prefill, "decode": decode, "conv_step": conv_step})
