"""Merging two states of attention: vLLM's kernel and FlashInfer's."""

from __future__ import annotations

import math
from functools import lru_cache

import torch

from moeparity import ptx
from moeparity.numerics import cuda
from moeparity.numerics.fma import fma
from moeparity.numerics.special_functions.functions import approximate
from moeparity.ops.kernels import flash_merges
from moeparity.ptx.launch_arguments import Argument
from tests.engines.cuda import toolchain
from tests.engines.cuda.claims import Claim
from tests.engines.cuda.compared import BF16, Compared, compare, timed

_STATES = (
    "using bf16 = __nv_bfloat16;\ntemplate __global__ void flashinfer::MergeStateKernel<8, bf16, bf16>"
    "(bf16*, float*, bf16*, float*, bf16*, float*, uint32_t, uint32_t);\n"
)


@lru_cache(maxsize=1)
def vllm() -> ptx.Module:
    """csrc/attention/merge_attn_states.cu."""
    return ptx.load(toolchain.vllm("attention/merge_attn_states.cu"))


@lru_cache(maxsize=1)
def flashinfer() -> ptx.Module:
    """attention/cascade.cuh."""
    return ptx.load(toolchain.flashinfer("flashinfer/attention/cascade.cuh", _STATES))


def states(tokens: int, heads: int, dim: int, base: float) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Two outputs [tokens, heads, dim] in bf16 that nearly cancel, with their log-sum-exp to a base [tokens, heads]."""
    g = torch.Generator().manual_seed(tokens * heads + dim)
    lse = 3 * torch.randn(2, tokens, heads, generator=g)
    lse[0, 0, 0] = -float("inf")
    out = torch.randn(tokens, heads, dim, generator=g)
    share = (base ** (lse[0] - lse[1]))[..., None].clamp(1e-3, 1e3)
    return [(out.to(BF16), lse[0].contiguous()), ((-out * share).to(BF16), lse[1].contiguous())]


def vllm_merge(tokens: int, heads: int, dim: int) -> Compared:
    """`merge_attn_states`: a thread for each 8 numbers, 128 a block; with the log-sum-exp."""
    (a, a_lse), (b, b_lse) = states(tokens, heads, dim, math.e)
    y, y_lse = torch.zeros_like(a), torch.zeros(heads, tokens)
    by_head = [x.t().contiguous() for x in (a_lse, b_lse)]
    args: list[Argument] = [
        y, y_lse, a, by_head[0], b, by_head[1], tokens, heads, dim, dim, dim, *[tokens, 1] * 3, tokens, 0,
    ]  # fmt: skip
    name = "merge_attn_states_kernelI13__nv_bfloat16S1_Lj128ELb0"
    launch = timed(lambda: vllm().launch(name, -(-tokens * heads * dim // 8 // 128), 128, args))
    runs = [flash_merges.Run(out, lse[..., None]) for out, lse in ((a, a_lse), (b, b_lse))]
    merged = flash_merges._pair(runs[0], runs[1], BF16)
    reversed_ = flash_merges._pair(runs[1], runs[0], BF16)
    return compare(
        "vLLM merge_attn_states_kernel", f"{tokens} x {heads} x {dim}", launch,
        [(y, merged.out), (y_lse, merged.lse[..., 0].t().contiguous())], against="`merge: pairwise`",
        claims=[Claim("mla", {"merge": "pairwise"})], control=reversed_.out,
    )  # fmt: skip


def flashinfer_merge(tokens: int, heads: int, dim: int) -> Compared:
    """MergeStateKernel: log-sum-exp to base 2; no profile chooses it."""
    (a, a_lse), (b, b_lse) = states(tokens, heads, dim, 2.0)
    y, y_lse = torch.zeros_like(a), torch.zeros_like(a_lse)
    args: list[Argument] = [a, a_lse, b, b_lse, y, y_lse, heads, dim]
    launch = timed(lambda: flashinfer().launch("16MergeStateKernel", tokens, (dim // 8, heads), args))
    highest = torch.maximum(a_lse, b_lse)
    powers = [approximate("ex2", lse - highest, ftz=True) for lse in (a_lse, b_lse)]
    total = powers[0] + powers[1]
    shares = [cuda.fast_divide(power, total)[..., None] for power in powers]
    merged = [
        fma(x.float(), s, z.float() * t) for x, s, z, t in ((a, shares[0], b, shares[1]), (b, shares[1], a, shares[0]))
    ]
    return compare(
        "FlashInfer MergeStateKernel", f"{tokens} x {heads} x {dim}", launch,
        [(y, merged[0].to(BF16)), (y_lse, approximate("lg2", total, ftz=True) + highest)], against="its formula",
        control=merged[1].to(BF16),
    )  # fmt: skip
