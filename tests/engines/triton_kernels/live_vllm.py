"""vLLM 0.33.0's Triton kernels run without a GPU (`backend`), each launched by vLLM's own function.

Given in place of what is not here: the platform, which answers as one H100 (capability 9.0, 132 SMs, no ROCm, and no
launches that overlap, which order launches and compute nothing); the CUDA
kernels `moe_align_block_size`, which only sorts slots by expert and is written in torch here, and `moe_sum`.
"""

from __future__ import annotations

from enum import IntEnum
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

from tests.engines.triton_kernels import backend  # isort: skip
import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

from tests.engines.triton_kernels.alone import engine


class Capability(NamedTuple):
    """Of a device, as vLLM hands it about."""

    major: int
    minor: int

    def to_int(self) -> int:
        return 10 * self.major + self.minor


H100 = SimpleNamespace(
    is_cuda=lambda: True,
    is_cuda_alike=lambda: True,
    is_rocm=lambda: False,
    is_xpu=lambda: False,
    is_cpu=lambda: False,
    is_tpu=lambda: False,
    is_out_of_tree=lambda: False,
    fp8_dtype=lambda: torch.float8_e4m3fn,
    is_fp8_fnuz=lambda: False,
    is_arch_support_pdl=lambda: False,
    get_device_capability=lambda *_: Capability(9, 0),
    has_device_capability=lambda capability, *_: capability <= 90,
    is_device_capability=lambda capability, *_: capability in (90, (9, 0)),
    is_device_capability_family=lambda capability, *_, **__: capability == 90,
    get_device_name=lambda *_: "NVIDIA H100 80GB HBM3",
    simple_compile_backend="eager",
    dispatch_key="CUDA",
)
FILES = (
    "vllm.envs",
    "vllm.utils.math_utils",
    "vllm.model_executor.determinism.batch_invariant_configs",
    "vllm.model_executor.determinism.batch_invariant",
    "vllm.model_executor.layers.fused_moe.utils",
    "vllm.model_executor.layers.fused_moe.fused_moe",
    "vllm.model_executor.layers.fused_moe.moe_fused_mul_sum",
    "vllm.model_executor.layers.fused_moe.deep_gemm_utils",
    "vllm.v1.attention.ops.triton_merge_attn_states",
    "vllm.v1.attention.ops.triton_decode_attention",
    "vllm.v1.attention.ops.triton_prefill_attention",
    "vllm.v1.attention.ops.triton_attention_helpers",
    "vllm.v1.attention.ops.triton_unified_attention",
    "vllm.v1.worker.gpu.sample.logprob",
    "vllm.v1.worker.gpu.sample.gumbel",
)
_QUANT = "NONE FP8_PER_TENSOR INT8_PER_TOKEN_HEAD FP8_PER_TOKEN_HEAD INT4_PER_TOKEN_HEAD NVFP4"
VALUES: dict[str, dict[str, Any]] = {
    "vllm.triton_utils": {"tl": tl, "triton": triton, "tldevice": libdevice, "HAS_TRITON": True},
    "vllm.platforms": {"current_platform": H100},
    "vllm.utils.platform_utils": {"num_compute_units": lambda *_: 132},
    "vllm.v1.kv_cache_interface": {"KVQuantMode": IntEnum("KVQuantMode", _QUANT, start=0)},
    "vllm.utils.mem_utils": {"get_max_shared_memory_bytes": lambda *_: 232448},
}
with engine(FILES, values=VALUES, absent=("cachetools", "cloudpickle", "msgspec", "zmq")):
    from vllm.model_executor.determinism import batch_invariant
    from vllm.model_executor.layers.fused_moe import deep_gemm_utils, fused_moe, moe_fused_mul_sum
    from vllm.v1.attention.ops import (
        triton_decode_attention,
        triton_merge_attn_states,
        triton_prefill_attention,
        triton_unified_attention,
    )
    from vllm.v1.worker.gpu.sample import gumbel, logprob

Found = dict[str, Tensor]


def _sorted_by_expert(ids: Tensor, block: int, experts: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Of `moe_align_block_size`: slots by expert, each expert's filled up to a block; experts of blocks; their sum."""
    flat, slots, owners = ids.flatten(), [], []
    for expert in range(experts):
        places_of = (flat == expert).nonzero().flatten().tolist()
        blocks = -(-len(places_of) // block)
        slots += places_of + [flat.numel()] * (blocks * block - len(places_of))
        owners += [expert] * blocks
    return tuple(torch.tensor(x, dtype=torch.int32) for x in (slots, owners, [len(slots)]))  # type: ignore[return-value]


def _moe_sum(rows: Tensor, out: Tensor) -> None:
    total = torch.zeros(out.shape)
    for slot in range(rows.shape[1]):
        total = total + rows[:, slot].float()
    out.copy_(total)


def _silu_and_mul(_: Any, out: Tensor, gate_up: Tensor) -> None:
    gate, up = gate_up.float().chunk(2, -1)
    out.copy_(torch.nn.functional.silu(gate).to(out.dtype).float() * up)


def _in_groups(powers: bool, A: Tensor, **_: Any) -> tuple[Tensor, Tensor]:
    """What per_token_group_quant_8bit gives for groups of 128, with scales that are powers of two or not (CUDA)."""
    groups = A.float().unflatten(-1, (-1, 128))
    scales = groups.abs().amax(-1).clamp(min=1e-10) / torch.tensor(448.0)
    scales = torch.exp2(scales.log2().ceil()) if powers else scales
    return (groups * (1 / scales)[..., None]).clamp(-448, 448).flatten(-2).to(torch.float8_e4m3fn), scales


fused_moe.moe_align_block_size = _sorted_by_expert
fused_moe.ops = SimpleNamespace(moe_sum=_moe_sum)
fused_moe.MoEActivation = SimpleNamespace(from_str=lambda name: name)
fused_moe.apply_moe_activation = _silu_and_mul
fused_moe.mk = SimpleNamespace(FusedMoEExpertsModular=SimpleNamespace(adjust_N_for_activation=lambda n, _: n // 2))
fused_moe.try_get_optimal_moe_config = lambda w1, w2, k, dtype, tokens, block_shape: fused_moe.get_default_config(
    tokens, w2[0], w2[2], w1[2], k, dtype, block_shape
)


def matmul(x: Tensor, weight: Tensor, bias: Tensor | None) -> Found:
    """x [M, K], weight [N, K], bias [N] -> [M, N]."""
    return {"output": batch_invariant.linear_batch_invariant(x, weight, bias)}


def bmm(a: Tensor, b: Tensor) -> Found:
    return {"output": batch_invariant.bmm_batch_invariant(a, b)}


def log_softmax(logits: Tensor, sums: Tensor | None = None) -> Found:
    with backend.torchs():
        return {"output": batch_invariant.log_softmax(logits), **backend.logs_of(sums)}


def softmax(x: Tensor) -> Found:
    return {"output": batch_invariant.softmax_batch_invariant(x, -1)}


def mean(x: Tensor) -> Found:
    return {"output": batch_invariant.mean_batch_invariant(x, [-1], keepdim=True)}


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Found:
    return {"output": batch_invariant.rms_norm_batch_invariant(x, weight, eps)}


def ranks_sum(parts: Tensor) -> Found:
    """parts [ranks, n], as they are gathered -> [n]; the launch is that of `all_reduce_batch_invariant`."""
    ranks, n = parts.shape
    out, block = torch.empty(n, dtype=parts.dtype), 1024
    kernel = batch_invariant._fixed_order_sum_kernel[(triton.cdiv(n, block),)]
    kernel(parts, out, n, n, WORLD_SIZE=ranks, BLOCK_SIZE=block, LARGE=False)
    return {"output": out}


def experts(
    x: Tensor,
    gate_up: Tensor,
    down: Tensor,
    ids: Tensor,
    weights: Tensor,
    gate_up_scales: Tensor | None = None,
    down_scales: Tensor | None = None,
    powers: bool = True,
) -> Found:
    """x [N, H], ids and weights [N, K] -> [N, H], and the rows of the second GEMM [N, K, H].

    With scales weights are codes of fp8 in blocks of 128 x 128, and activations are rounded to fp8 in groups of 128.
    """
    rows: list[Tensor] = []
    blocks = gate_up_scales is not None
    fused_moe.moe_kernel_quantize_input = partial(_in_groups, powers) if blocks else lambda A, **_: (A, None)
    fused_moe._get_config_dtype_str = lambda **_: "fp8_w8a8" if blocks else None

    def summed(rows_in: Tensor, out: Tensor) -> None:
        rows.append(rows_in.clone())
        _moe_sum(rows_in, out)

    fused_moe.ops.moe_sum = summed
    scales = {"use_fp8_w8a8": blocks, "w1_scale": gate_up_scales, "w2_scale": down_scales}
    shape = [128, 128] if blocks else None
    output = fused_moe.fused_experts_impl(x, gate_up, down, weights, ids.int(), **scales, block_shape=shape)
    return {"output": output, "rows": rows[0]}


def weighted_sum(rows: Tensor, weights: Tensor, ids: Tensor | None) -> Found:
    return {"output": moe_fused_mul_sum.moe_fused_mul_sum(rows, weights, topk_ids=ids)}


def gather(rows: Tensor, ids: Tensor, weights: Tensor, places: Tensor, expert_map: Tensor | None) -> Found:
    """rows [M, H] as experts leave them, ids, weights and places [N, K] -> [N, H]."""
    output = torch.empty(len(ids), rows.shape[1], dtype=rows.dtype)
    deep_gemm_utils.ep_gather(rows, ids, weights, places, expert_map, output)
    return {"output": output}


def scatter(x: Tensor, ids: Tensor, experts: int) -> Found:
    """x [N, H] -> where each slot's row lies [N, K], and the rows."""
    counts = torch.bincount(ids.flatten(), minlength=experts).int()
    aligned = int(((counts + 127) // 128 * 128).sum())
    out, scales = torch.zeros(aligned, x.shape[1], dtype=x.dtype), torch.zeros(aligned, x.shape[1] // 128)
    owners, places = torch.full((aligned,), -1, dtype=torch.int32), torch.full(ids.shape, -1, dtype=torch.int32)
    starts, ones = torch.empty(experts, dtype=torch.int32), torch.ones(len(x), x.shape[1] // 128)
    deep_gemm_utils.ep_scatter(x, ones, ids, counts, None, starts, out, scales, owners, places)
    return {"rows": out, "places": places, "owners": owners}


def merge(a: Tensor, b: Tensor, lse_a: Tensor, lse_b: Tensor) -> Found:
    """a, b [N, heads, D], lse [heads, N]."""
    out, lse = torch.empty_like(a), torch.empty_like(lse_a)
    triton_merge_attn_states.merge_attn_states(out, a, lse_a, b, lse_b, lse)
    return {"output": out, "lse": lse}


def _paged(x: Tensor, page: int, seed: int) -> tuple[Tensor, Tensor]:
    """x [B, S, G, D] -> pages [P, page, G, D] in a random order, and which of them each sequence has [B, S / page]."""
    batch, length = x.shape[:2]
    pages = -(-length // page)
    order = torch.randperm(batch * pages, generator=torch.Generator().manual_seed(seed), device="cpu")
    table = order.view(batch, pages).to(x.device)
    padded = torch.zeros(batch, pages * page, *x.shape[2:], dtype=x.dtype)
    padded[:, :length] = x
    cache = torch.empty(batch * pages, page, *x.shape[2:], dtype=x.dtype)
    cache[table.flatten()] = padded.view(-1, page, *x.shape[2:])
    return cache, table.int()


def decode(
    q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, splits: int, scale: float, latent: bool, output: torch.dtype
) -> Found:
    """q [B, heads, D], k [B, S, G, D], v [B, S, G, V]: attention of the last token."""
    (keys, table), (values, _) = _paged(k, 16, 1), _paged(v, 16, 1)
    batch, heads = q.shape[:2]
    middle = torch.empty(batch, heads, splits, v.shape[-1] + 1)
    out, lse = torch.empty(batch, heads, v.shape[-1], dtype=output), torch.empty(batch, heads)
    triton_decode_attention.decode_attention_fwd(
        q, keys, values, out, lse, table, lengths.int(), middle, splits, scale, page_size=16, is_mla=latent
    )
    return {"output": out, "lse": lse}


def unified(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lengths: Tensor,
    segments: int,
    window: int,
    sinks: Tensor | None,
    output: torch.dtype,
) -> Found:
    """q [B, T, heads, D], the last T of S tokens; k, v [B, S, G, D] -> [B, T, heads, D]; 2D without segments."""
    (keys, table), (values, _) = _paged(k, 16, 1), _paged(v, 16, 1)
    batch, tokens, heads, width = q.shape
    flat, out = q.flatten(0, 1), torch.empty(batch * tokens, heads, width, dtype=output)
    starts = torch.arange(0, batch * tokens + 1, tokens, dtype=torch.int32)
    split: dict[str, Any] = {}
    if segments:
        padded = triton.next_power_of_2(width)
        split = {
            "seq_threshold_3D": 128,
            "num_par_softmax_segments": segments,
            "softmax_segm_output": torch.empty(len(flat), heads, segments, padded),
            "softmax_segm_max": torch.empty(len(flat), heads, segments),
            "softmax_segm_expsum": torch.empty(len(flat), heads, segments),
        }
    triton_unified_attention.unified_attention(
        flat, keys, values, out, starts, tokens, lengths.int(), int(lengths.max()), width**-0.5, True,
        (window - 1, 0) if window else (-1, -1), table, 0.0, None, None, None, sinks=sinks, **split,
    )  # fmt: skip
    return {"output": out.view(q.shape)}


def prefill(q: Tensor, k: Tensor, v: Tensor) -> Found:
    """q [B, T, heads, D], k, v [B, T, G, D]."""
    batch, tokens = q.shape[:2]
    out = torch.empty(batch * tokens, *q.shape[2:])
    starts, lengths = torch.arange(batch, dtype=torch.int32) * tokens, torch.full((batch,), tokens, dtype=torch.int32)
    triton_prefill_attention.context_attention_fwd(*(x.flatten(0, 1) for x in (q, k, v)), out, starts, lengths, tokens)
    return {"output": out.view(q.shape)}


def logprobs(logits: Tensor, ids: Tensor, sums: Tensor | None = None) -> Found:
    with backend.torchs():
        return {"output": logprob.compute_token_logprobs(logits, ids), **backend.logs_of(sums)}


def temperature(logits: Tensor, temperatures: Tensor) -> Found:
    output = logits.clone()
    gumbel.apply_temperature(output, torch.arange(len(logits), dtype=torch.int32), temperatures)
    return {"output": output}


KINDS = {
    f.__name__: f
    for f in (
        matmul, bmm, log_softmax, softmax, mean, rms_norm, ranks_sum, experts, weighted_sum, gather, scatter, merge,
        decode, unified, prefill, logprobs, temperature,
    )
}  # fmt: skip

if __name__ == "__main__":
    backend.answer(KINDS)
