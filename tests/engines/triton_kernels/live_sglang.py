"""SGLang 0.5.23's Triton kernels run without a GPU (`backend`), each launched by SGLang's own function.

Given in place of what is not here: the platform, which answers as one H100 (CUDA, SM90, 132 SMs) but without launches
that overlap (PDL, which orders launches and computes nothing); DeepGEMM, which is said to be absent, so that matrix
products are Triton's; `moe_align_block_size`, which only sorts slots by expert.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from tests.engines.triton_kernels import backend  # isort: skip
import torch
import triton.language as tl
from torch import Tensor

from tests.engines.triton_kernels.alone import engine


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def _from_environment(_: str, default: str = "0") -> bool:
    return default == "1"


def always(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


OFF = SimpleNamespace(get=lambda: False)
H100 = {
    **{f"is_{name}": always(value=False) for name in ("npu", "hip", "musa", "cpu", "xpu", "sm120_supported")},
    **{f"is_{name}_supported": always(value=False) for name in ("gfx95", "gfx1250", "sm100")},
    "is_cuda": always(value=True),
    "is_sm90_supported": always(value=True),
    "cpu_has_amx_support": always(value=False),
    "ceil_div": _ceil_div,
    "get_device_core_count": always(132),
    "get_bool_env_var": _from_environment,
    "get_device_capability": always((9, 0)),
}


class _Environment:
    def __getattr__(self, name: str) -> Any:
        return OFF


FILES = (
    "sglang.srt.batch_invariant_ops.batch_invariant_ops",
    "sglang.kernels.ops.moe.fused_moe_triton_kernels",
    "sglang.kernels.ops.moe.moe_fused_gate",
    "sglang.kernels.ops.moe.ep_moe_kernels",
    "sglang.kernels.ops.attention.decode_attention",
    "sglang.kernels.ops.attention.extend_attention",
    "sglang.kernels.ops.attention.score_mod",
    "sglang.kernels.ops.attention.merge_state",
    "sglang.kernels.ops.layernorm.fused_rmsnorm",
)
VALUES: dict[str, dict[str, Any]] = {
    "sglang.srt.utils": H100,
    "sglang.srt.utils.common": H100,
    "sglang.srt.environ": {"envs": _Environment()},
    "sglang.srt.layers.deep_gemm_wrapper.configurer": {"ENABLE_JIT_DEEPGEMM": False},
    "sglang.srt.layers.moe.utils": {"get_moe_padding_size": always(0)},
    "sglang.srt.batch_invariant_ops": {"is_batch_invariant_mode_enabled": always(value=False)},
    "sglang.kernels.jit.utils": {"is_arch_support_pdl": always(value=False)},
    "sglang.kernels.kernel_api_logging": {"debug_kernel_api": lambda function: function},
    "sglang.kernels.ops.moe.moe_route_radix": {"covered": always(value=False)},
}
torch.cuda.get_device_capability = always((9, 0))
with engine(FILES, values=VALUES, absent=()):
    from sglang.kernels.ops.attention import decode_attention, extend_attention, merge_state
    from sglang.kernels.ops.layernorm import fused_rmsnorm
    from sglang.kernels.ops.moe import ep_moe_kernels, fused_moe_triton_kernels, moe_fused_gate
    from sglang.srt.batch_invariant_ops import batch_invariant_ops

Found = dict[str, Tensor]


def matmul(x: Tensor, weight: Tensor) -> Found:
    """x [M, K], weight [N, K] -> [M, N]."""
    return {"output": batch_invariant_ops.mm_batch_invariant(x, weight.t())}


def bmm(a: Tensor, b: Tensor) -> Found:
    return {"output": batch_invariant_ops.bmm_batch_invariant(a, b)}


def log_softmax(logits: Tensor, sums: Tensor | None = None) -> Found:
    with backend.torchs():
        return {"output": batch_invariant_ops.log_softmax(logits), **backend.logs_of(sums)}


def mean(x: Tensor) -> Found:
    with patch.object(Tensor, "is_cuda", True):
        return {"output": batch_invariant_ops.mean_batch_invariant(x, [-1], keepdim=True)}


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Found:
    return {"output": batch_invariant_ops.rms_norm_batch_invariant(x, weight, eps)}


def one_tile_norm(x: Tensor, weight: Tensor, eps: float) -> Found:
    return {"output": fused_rmsnorm.fused_rmsnorm(x, weight, eps)}


def _sorted_by_expert(ids: Tensor, block: int, experts: int) -> tuple[Tensor, Tensor, Tensor]:
    """Of `moe_align_block_size`: slots by expert, each expert's filled up to a block; experts of blocks; their sum."""
    flat, slots, owners = ids.flatten(), [], []
    for expert in range(experts):
        places_of = (flat == expert).nonzero().flatten().tolist()
        blocks = -(-len(places_of) // block)
        slots += places_of + [flat.numel()] * (blocks * block - len(places_of))
        owners += [expert] * blocks
    return tuple(torch.tensor(x, dtype=torch.int32) for x in (slots, owners, [len(slots)]))  # type: ignore[return-value]


DETERMINISTIC = {"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 32, "GROUP_SIZE_M": 8}
FEW_TOKENS = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 1}
IN_BLOCKS = {
    "BLOCK_SIZE_M": 64,
    "BLOCK_SIZE_N": 128,
    "BLOCK_SIZE_K": 128,
    "GROUP_SIZE_M": 32,
    "num_warps": 4,
    "num_stages": 3,
}
"""Tiles of a server without a tuned table: a deterministic one's, those of no more tokens than experts, of fp8."""


def _in_groups(x: Tensor) -> tuple[Tensor, Tensor]:
    """What per_token_group_quant_8bit gives for groups of 128 (CUDA)."""
    groups = x.float().unflatten(-1, (-1, 128))
    amax, top = groups.abs().amax(-1).clamp(min=1e-10), torch.tensor(448.0)
    codes = (groups * (top / amax)[..., None]).clamp(-448, 448).flatten(-2).to(torch.float8_e4m3fn)
    return codes, amax * (1 / top)


def experts(
    x: Tensor,
    gate_up: Tensor,
    down: Tensor,
    ids: Tensor,
    weights: Tensor,
    deterministic: bool = True,
    gate_up_scales: Tensor | None = None,
    down_scales: Tensor | None = None,
) -> Found:
    """x [N, H], ids and weights [N, K] -> [N, H], and the rows of the second GEMM.

    With scales weights are codes of fp8 in blocks of 128 x 128, and activations are rounded to fp8 in groups of 128.
    """
    (tokens, hidden), (count, wide, _), k = x.shape, gate_up.shape, ids.shape[1]
    in_blocks = gate_up_scales is not None
    config = IN_BLOCKS if in_blocks else DETERMINISTIC if deterministic else FEW_TOKENS
    order = _sorted_by_expert(ids, config["BLOCK_SIZE_M"], count)
    first, second = torch.empty(tokens, k, wide, dtype=x.dtype), torch.empty(tokens, k, hidden, dtype=x.dtype)
    middle, output = torch.empty(tokens * k, wide // 2, dtype=x.dtype), torch.empty_like(x)
    plain: dict[str, Any] = {f"use_{name}": False for name in ("fp8_w8a8", "int8_w8a8", "int8_w8a16", "int4_w4a16")}
    plain |= {"per_channel_quant": False, "compute_type": tl.bfloat16, "config": config}

    plain |= {"use_fp8_w8a8": in_blocks, "block_shape": [128, 128] if in_blocks else None}

    def gemm(a: Tensor, b: Tensor, scales: Tensor | None, c: Tensor, scored: bool, rows: int) -> None:
        a, a_scales = _in_groups(a) if in_blocks else (a, None)
        fused_moe_triton_kernels.invoke_fused_moe_kernel(
            a, b, None, c, a_scales, scales, None, weights, ids, *order, scored, rows, **plain
        )

    gemm(x, gate_up, gate_up_scales, first, False, k)
    fused_moe_triton_kernels.act_and_mul_triton(first.view(-1, wide), middle, config, ids)
    gemm(middle, down, down_scales, second, True, 1)
    fused_moe_triton_kernels.moe_sum_reduce_triton(second, output, 1.0)
    return {"rows": second, "output": output}


def sum_reduce(rows: Tensor, scale: float) -> Found:
    """rows [N, K, H] -> [N, H]."""
    output = torch.empty(len(rows), rows.shape[2], dtype=rows.dtype)
    fused_moe_triton_kernels.moe_sum_reduce_triton(rows, output, scale)
    return {"output": output}


def swiglu(gate_up: Tensor) -> Found:
    """gate_up [M, 2I] -> [M, I]."""
    output = torch.empty(len(gate_up), gate_up.shape[1] // 2, dtype=gate_up.dtype)
    with backend.torchs():
        fused_moe_triton_kernels.act_and_mul_triton(gate_up, output, {})
    return {"output": output}


def masked_swiglu(gate_up: Tensor) -> Found:
    """gate_up [E, M, 2I], all rows taken -> [E, M, I]."""
    output = torch.empty(*gate_up.shape[:2], gate_up.shape[2] // 2, dtype=gate_up.dtype)
    counts = torch.full((len(gate_up),), gate_up.shape[1], dtype=torch.int32)
    with backend.torchs():
        ep_moe_kernels.silu_and_mul_masked_fwd(gate_up, output, counts)
    return {"output": output}


def gate(logits: Tensor, bias: Tensor | None, k: int, **settings: Any) -> Found:
    """logits [N, E] -> ids and weights [N, K]."""
    with backend.torchs():
        weights, ids = moe_fused_gate.moe_fused_gate(logits, bias, k, **settings)
    return {"weights": weights, "ids": ids}


def gather(rows: Tensor, ids: Tensor, weights: Tensor, places: Tensor, expert_map: None) -> Found:
    """rows [M, H] as experts leave them, ids, weights and places [N, K] -> [N, H]."""
    assert expert_map is None
    output = torch.empty(len(ids), rows.shape[1], dtype=rows.dtype)
    with backend.scalar_ranges(ep_moe_kernels):
        ep_moe_kernels.ep_gather(rows, ids, weights, places, output)
    return {"output": output}


def post_reorder(rows: Tensor, ids: Tensor, weights: Tensor, places: Tensor) -> Found:
    """As `gather`; the launch is that of DeepEP's normal dispatch in `deepep_post_permute`."""
    output = torch.empty(len(ids), rows.shape[1], dtype=rows.dtype)
    kernel = ep_moe_kernels.deepep_post_reorder_triton_kernel[(len(ids),)]
    kernel(rows, output, places, ids, weights, ids.shape[1], rows.shape[1], 1.0, BLOCK_SIZE=512)
    return {"output": output}


def merge(a: Tensor, b: Tensor, lse_a: Tensor, lse_b: Tensor) -> Found:
    """a, b [N, heads, D], lse [heads, N]."""
    lses = (x.t().contiguous() for x in (lse_a, lse_b))
    first, second = lses
    out, _ = merge_state.merge_state_triton(a, first, b, second)
    return {"output": out}


def _packed(x: Tensor, lengths: Tensor) -> Tensor:
    """Of x [B, S, ..] the tokens there are, one sequence behind the other."""
    return torch.cat([row[:length] for row, length in zip(x, lengths.tolist(), strict=True)])


def decode(
    q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, splits: int, scale: float, latent: bool, output: torch.dtype
) -> Found:
    """q [B, heads, D], k [B, S, G, D], v [B, S, G, V]: attention of the last token; keys lie in a random order."""
    batch, heads = q.shape[:2]
    keys, values = _packed(k, lengths), _packed(v, lengths)
    order = torch.randperm(len(keys), generator=torch.Generator().manual_seed(1), device="cpu").to(keys.device)
    keys, values = keys[order], values[order]
    starts = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]).int()
    middle, lse = torch.empty(batch, heads, splits, v.shape[-1]), torch.empty(batch, heads, splits)
    out = torch.empty(batch, heads, v.shape[-1], dtype=output)
    decode_attention.decode_attention_fwd(
        q, keys, values, out, starts, order.argsort(), middle, lse,
        torch.full((batch,), splits, dtype=torch.int32), splits, scale, 1.0, 1.0, has_mla=latent,
    )  # fmt: skip
    return {"output": out}


def extend(q: Tensor, k: Tensor, v: Tensor, output: torch.dtype) -> Found:
    """q [B, T, heads, D], the last T of S tokens; k, v [B, S, G, D]."""
    (batch, tokens), length = q.shape[:2], k.shape[1]
    before = length - tokens
    own_parts = [x[:, before:].flatten(0, 1).contiguous() for x in (k, v)]
    cached = [x[:, :before].flatten(0, 1).contiguous() for x in (k, v)]
    out = torch.empty(batch * tokens, *q.shape[2:], dtype=output)
    starts, places = (
        torch.arange(0, batch * n + 1, max(n, 1), dtype=torch.int32)[: batch + 1] for n in (tokens, before)
    )
    if not before:
        places = torch.zeros(batch + 1, dtype=torch.int32)
        cached = [torch.zeros(1, *x.shape[2:], dtype=x.dtype) for x in (k, v)]
    extend_attention.extend_attention_fwd(
        q.flatten(0, 1).contiguous(), *own_parts, out, *cached, starts, places, torch.arange(batch * before), None,
        True, None, tokens, 1.0, 1.0,
    )  # fmt: skip
    return {"output": out.view(*q.shape)}


KINDS = {
    f.__name__: f
    for f in (
        matmul, bmm, log_softmax, mean, rms_norm, one_tile_norm, experts, sum_reduce, swiglu, masked_swiglu, gate,
        gather, post_reorder, merge, decode, extend,
    )
}  # fmt: skip

if __name__ == "__main__":
    backend.answer(KINDS)
