"""vLLM 0.33.0's Triton kernels of gated delta nets, run without a GPU (`backend`), launched by vLLM's own functions.

Where vLLM would try several tilings and keep the fastest, the one with the widest tiles is taken.
"""

from __future__ import annotations

from unittest.mock import patch

from tests.engines.triton_kernels import backend  # isort: skip
import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

from tests.engines.triton_kernels.alone import engine
from tests.engines.triton_kernels.live_vllm import H100
from tests.engines.triton_kernels.widest import exp, log, on_h100, widest

OPS = "vllm.third_party.flash_linear_attention.ops"
NAMES = (
    "chunk", "chunk_delta_h", "chunk_o", "chunk_scaled_dot_kkt", "cumsum", "fused_gdn_prefill_post_conv",
    "fused_recurrent", "index", "l2norm", "solve_tril", "utils", "wy_fast",
)  # fmt: skip
VALUES = {
    "vllm.triton_utils": {"tl": tl, "triton": triton, "tldevice": libdevice, "HAS_TRITON": True},
    "vllm.platforms": {"current_platform": H100},
    f"{OPS}.op": {"exp": exp, "log": log, "exp2": None, "make_tensor_descriptor": None},
    "vllm.v1.attention.backends.utils": {"NULL_BLOCK_ID": 0, "PAD_SLOT_ID": -1},
    "vllm.utils.torch_utils": {"async_tensor_h2d": lambda data, *_, **__: torch.tensor(data)},
}
CONV = "vllm.model_executor.layers.mamba.ops.causal_conv1d"
with (
    on_h100(),
    patch.object(triton, "autotune", widest),
    engine([*(f"{OPS}.{name}" for name in NAMES), CONV], values=VALUES, absent=()),
):
    from vllm.model_executor.layers.mamba.ops import causal_conv1d
    from vllm.third_party.flash_linear_attention.ops import (
        chunk,
        chunk_delta_h,
        fused_gdn_prefill_post_conv,
        fused_recurrent,
    )

Found = dict[str, Tensor]


def prefill(
    qkv: Tensor, a: Tensor, b: Tensor, a_log: Tensor, dt_bias: Tensor, state: Tensor, heads: int, width: int
) -> Found:
    """qkv [T, all channels], a, b [T, HV], state fp32 [1, HV, V, K] -> [T, HV, V] and the state behind them."""
    prepared = fused_gdn_prefill_post_conv.fused_post_conv_prep(
        qkv, a, b, a_log, dt_bias, heads, width, state.shape[2], apply_l2norm=True, output_g_exp=False
    )
    q, k, v, g, beta = (x.unsqueeze(0) for x in prepared)
    with backend.in_order(), backend.scalar_ranges(chunk_delta_h):
        out, after = chunk.chunk_gated_delta_rule(
            q, k, v, g, beta, initial_state=state, output_final_state=True, use_qk_l2norm_in_kernel=False
        )
    return {"output": out[0], "state": after}


def decode(qkv: Tensor, a: Tensor, b: Tensor, a_log: Tensor, dt_bias: Tensor, state: Tensor, width: int) -> Found:
    """A token of each of B sequences: qkv [B, all channels], state [B, HV, V, K] -> [B, HV, V] and the states."""
    slots = torch.cat((torch.zeros_like(state[:1]), state))
    out = torch.empty(len(qkv), 1, *state.shape[1:3], dtype=qkv.dtype)
    indices = torch.arange(1, len(slots), dtype=torch.int32)
    fused_recurrent.fused_recurrent_gated_delta_rule_packed_decode(
        qkv, a, b, a_log, dt_bias, width**-0.5, slots, out, indices, use_qk_l2norm_in_kernel=True
    )
    return {"output": out[:, 0], "state": slots[1:]}


def conv(x: Tensor, weight: Tensor, window: Tensor) -> Found:
    """A sequence, x [T, C], weight [C, taps], window [1, C, taps - 1] of the inputs before it -> [T, C], the last."""
    slots, first = torch.cat((torch.zeros_like(window), window)), torch.ones(1, dtype=torch.int32)
    ends = torch.tensor([0, len(x)], dtype=torch.int32)
    # As vLLM's cache has it, and as its convolution asks for it: channels side by side.
    states = slots.transpose(1, 2).contiguous().transpose(1, 2)
    out = causal_conv1d.causal_conv1d_fn(
        x.transpose(0, 1), weight, None, states, ends, first, first.bool(), activation="silu"
    )
    return {"output": out.transpose(0, 1), "window": states[1:]}


def conv_step(x: Tensor, weight: Tensor, window: Tensor) -> Found:
    """A token of each of B sequences: x [B, C], window [B, C, taps - 1] -> [B, C] and the windows behind them."""
    slots = torch.cat((torch.zeros_like(window[:1]), window))
    states = slots.transpose(1, 2).contiguous().transpose(1, 2)
    indices = torch.arange(1, len(slots), dtype=torch.int32)
    out = causal_conv1d.causal_conv1d_update(x.clone(), states, weight, None, "silu", conv_state_indices=indices)
    return {"output": out, "window": states[1:]}


if __name__ == "__main__":
    backend.answer({"prefill": prefill, "decode": decode, "conv": conv, "conv_step": conv_step})
