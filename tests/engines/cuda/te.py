"""TransformerEngine's RMSNorm, tuned and general, and its fused rotary embedding, against nodes of profile megatron."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from moeparity import ptx
from moeparity.ptx.arguments import Argument
from tests.engines.cuda import ropes, toolchain
from tests.engines.cuda.claims import Claim
from tests.engines.cuda.compared import BF16, FP32, Compared, compare, plan_values, timed
from tests.engines.cuda.norms import EPS, Rows, norm_claims, profile_norm

_HEAD = """#include <cuda_bf16.h>
#include "utils.cuh"
#include "normalization/kernel_traits.h"
#include "normalization/rmsnorm/rmsnorm_fwd_kernels.cuh"
namespace te = transformer_engine::normalization;
using bf16 = nv_bfloat16;
"""
TUNED = {512: (4, 1), 2048: (4, 1), 4096: (1, 4)}
"""Hidden size -> warps along rows and along a row, as registered in rmsnorm_fwd_cuda_kernel.cu."""
GENERAL = {128: (4, 1, 8), 512: (4, 1, 16), 2048: (4, 1, 16), 8192: (1, 4, 16)}
"""Up to which hidden size -> these, and bytes of a load."""


@lru_cache(maxsize=1)
def module() -> ptx.Module:
    """rmsnorm_fwd_kernels.cuh for rows, weights and outputs in bf16."""
    kinds = [("tuned", width, (*warps, 16)) for width, warps in TUNED.items()]
    kinds += [("general", width, shape) for width, shape in GENERAL.items()]
    instances = "".join(
        f"template __global__ void te::rmsnorm_fwd_{kind}_kernel<te::Kernel_traits<bf16, bf16, bf16, float, uint32_t, "
        f"{width}, 1, {m}, {n}, {load}>>(te::ForwardKernelParams);\n"
        for kind, width, (m, n, load) in kinds
    )
    # Host headers (cuDNN's among them) are left out, as TransformerEngine's own runtime compiler leaves them out.
    absent = ("-DTRANSFORMER_ENGINE_COMMON_NORM_COMMON_H_", "-DTRANSFORMER_ENGINE_COMMON_COMMON_H_")
    return ptx.load(toolchain.transformer_engine("kernel_params.h", _HEAD + instances, *absent))


def rms_norm(hidden: int, count: int) -> Compared:
    """Tuned where there is a kernel of that width and rows come in whole groups of 4."""
    rows, tuned = Rows.drawn(hidden, count), hidden in TUNED and count % 4 == 0
    width = hidden if tuned else min(limit for limit in GENERAL if limit >= hidden)
    m, n = TUNED[width] if tuned else GENERAL[width][:2]
    y, roots, blocks = torch.zeros_like(rows.x), torch.zeros(count), -(-count // m)
    first = (blocks, 1, count, hidden, rows.x.clone(), 0, roots, rows.weight, 0, 0, 0)
    params = ptx.Struct("iiiiPPPPPP?0PPPfPiPPi?0P", (*first, y, 0, EPS, 0, 0, 0, 0, 0, 0))
    name = f"rmsnorm_fwd_{'tuned' if tuned else 'general'}_kernel fjLj{width}ELj1E"
    launch = timed(lambda: module().launch(name, blocks, 32 * m * n, [params], shared=4096))
    kind = "tuned" if tuned else "general"

    def by_node(statistic: str) -> torch.Tensor:
        return profile_norm(rows.x, rows.weight, "native", statistic=statistic)

    return compare(
        f"TransformerEngine rmsnorm_fwd_{kind}_kernel", rows.shape, launch, [(y, by_node("transformer_engine"))],
        against="`statistic: transformer_engine`",
        claims=norm_claims(rows.x, rows, "native", statistic="transformer_engine"),
        control=profile_norm(rows.x, rows.weight, "sequential"),
    )  # fmt: skip


@lru_cache(maxsize=1)
def rotary() -> ptx.Module:
    """fused_rope.cu."""
    return ptx.load(toolchain.transformer_engine("fused_rope/fused_rope.cu", ""))


def rope(tokens: int, heads: int, dim: int) -> Compared:
    """`fused_rope_forward` of halves: cos and sin of the angles are made in fp32 within the kernel.

    CUDA's sincosf is not torch's: what it makes is read off the kernel for fp32, of numbers that are 1 and 0.
    """
    at = plan_values("megatron", "qwen3_moe", "rope")
    inverse = 1.0 / 10000 ** (torch.arange(0, dim, 2).float() / dim)
    angles = torch.arange(tokens).float()[:, None] * inverse
    freqs = torch.cat([angles, angles], -1).contiguous()
    ones = torch.cat([torch.ones(tokens, 1, dim // 2), torch.zeros(tokens, 1, dim // 2)], -1).contiguous()
    table = turned(ones, freqs).y[:, 0]
    x = ropes.drawn(table, heads, dim, pairs=False)
    launch = timed(lambda: turned(x, freqs).run)

    def by_node(values: Mapping[str, Any], kept: torch.dtype = FP32) -> list[torch.Tensor]:
        return ropes.by_node(x, x, table.to(kept), values, pairs=False)[:1]

    return compare(
        "TransformerEngine fused_rope_forward_kernel", f"{tokens} x {heads} x {dim}",
        launch, [(turned(x, freqs).y, by_node(at)[0])], against="`rotary`, `rope`", control=by_node(at, BF16)[0],
        claims=[Claim("rope", at, by_node), Claim("rotary", {"output": FP32}, lambda v: by_node(at, v["output"]))],
    )  # fmt: skip


class Turned(NamedTuple):
    """What the kernel made, and its run."""

    y: torch.Tensor
    run: ptx.Run


def turned(x: torch.Tensor, freqs: torch.Tensor) -> Turned:
    """x [tokens, heads, dim], as [tokens, 1, heads, dim]."""
    tokens, heads, dim = x.shape
    y, warps = torch.zeros_like(x), 4 if heads < 16 else 8
    strides = (heads * dim, heads * dim, dim, 1)
    args: list[Argument] = [x, 0, freqs, 0, y, 0, 1, 0, tokens, heads, dim, dim, *strides, *strides]
    name = "fused_rope_forward_kernelI" + ("13__nv_bfloat16" if x.dtype == BF16 else "f")
    return Turned(y, rotary().launch(name, (tokens, 1), (32, warps), args, shared=8 * dim))
