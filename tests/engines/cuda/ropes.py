"""Rotary embedding: vLLM's kernel in C and FlashInfer's, against the node `rope`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch

from moeparity import ptx
from moeparity.ops.kernels.rope import rope
from moeparity.ptx.launch_arguments import Argument
from tests.engines.cuda import toolchain
from tests.engines.cuda.claims import Claim
from tests.engines.cuda.compared import BF16, FP32, Compared, compare, plan_values, timed

_HEADS, _STRIDES = ", ".join(["__nv_bfloat16*"] * 4), ", ".join(["uint32_t"] * 4 + ["size_t"] * 8)
_ROPE = "".join(
    f"template __global__ void flashinfer::BatchQKApplyRotaryPosIdsCosSinCacheKernel<{pairs}, 128, 8, 16, "
    f"__nv_bfloat16, int32_t>({_HEADS}, float*, int32_t*, {_STRIDES});\n"
    for pairs in ("true", "false")
)


@lru_cache(maxsize=1)
def vllm() -> ptx.Module:
    """csrc/pos_encoding_kernels.cu."""
    return ptx.load(toolchain.vllm("pos_encoding_kernels.cu"))


@lru_cache(maxsize=1)
def flashinfer() -> ptx.Module:
    """pos_enc.cuh, halves and pairs of heads of 128."""
    return ptx.load(toolchain.flashinfer("flashinfer/pos_enc.cuh", _ROPE))


def drawn(rows: torch.Tensor, heads: int, dim: int, *, pairs: bool) -> torch.Tensor:
    """[tokens, heads, dim] in bf16 for these rows of cos and sin.

    What is turned nearly cancels: of even tokens in the first output of two, of odd ones in the second, so that the
    roundings of the products are what is left.
    """
    tokens, turned = rows.shape
    g = torch.Generator().manual_seed(tokens * heads + dim)
    x = torch.randn(tokens, heads, dim, generator=g)
    cos, sin = (half[:, None].float() for half in rows.chunk(2, dim=-1))
    ratio = torch.where((torch.arange(tokens) % 2 == 0)[:, None, None], cos / sin, -sin / cos).nan_to_num(0, 0, 0)
    first = x[..., :turned:2] if pairs else x[..., : turned // 2]
    second = x[..., 1:turned:2] if pairs else x[..., turned // 2 : turned]
    second.copy_(first.to(BF16).float() * ratio)
    return x.to(BF16)


def table(positions: int, dim: int, dtype: torch.dtype) -> torch.Tensor:
    """cos and sin beside each other, [positions, dim]."""
    inverse = 1.0 / 10000 ** (torch.arange(0, dim, 2).float() / dim)
    angles = torch.arange(positions).float()[:, None] * inverse
    return torch.cat([angles.cos(), angles.sin()], dim=-1).to(dtype)


def by_node(
    q: torch.Tensor, k: torch.Tensor, rows: torch.Tensor, at: Mapping[str, Any], *, pairs: bool
) -> list[torch.Tensor]:
    """q and k [tokens, heads, dim] as the node turns them."""
    cos, sin = (torch.cat([half, half], -1)[None] for half in rows.chunk(2, dim=-1))
    p = {"interleaved": pairs, "partial": rows.shape[-1] < q.shape[-1]}
    turned = rope(q[None], k[None], cos, sin, w={}, p=p, at={"layout": "pairs" if pairs else "halves", **at})
    return [x[0].transpose(0, 1).contiguous() for x in turned]


def vllm_rotary(tokens: int, heads: tuple[int, int], dim: int, turned: int, *, pairs: bool) -> Compared:
    """`rotary_embedding`: a block for each token, up to 512 threads; cos and sin in bf16, in place."""
    at = plan_values("vllm-eager", "qwen3_moe", "rope")
    positions = (torch.arange(tokens) * 37) % 512
    cache = table(512, turned, BF16)
    q, k = (drawn(cache[positions], count, dim, pairs=pairs) for count in heads)
    new_q, new_k = q.clone(), k.clone()
    args: list[Argument] = [
        positions, new_q, new_k, cache, turned, heads[0] * dim, heads[1] * dim, dim, heads[0], heads[1], dim, 0, 0,
    ]  # fmt: skip
    name = f"rotary_embedding_kernelIN3c108BFloat16ES2_Lb{int(not pairs)}"
    launch = timed(lambda: vllm().launch(name, tokens, min(heads[0] * turned // 2, 512), args))
    expected = by_node(q, k, cache[positions], at, pairs=pairs)
    control = by_node(q, k, cache[positions], {**at, "contraction": "none"}, pairs=pairs)[0]
    shape = f"{tokens} x {heads[0]}+{heads[1]} x {dim}, {turned} {'pairs' if pairs else 'halves'}"
    return compare(
        "vLLM rotary_embedding_kernel", shape,
        launch, [(new_q, expected[0]), (new_k, expected[1])], against="`rope`",
        claims=[Claim("rope", at, lambda values: by_node(q, k, cache[positions], values, pairs=pairs))],
        control=control,
    )  # fmt: skip


def flashinfer_rotary(tokens: int, heads: tuple[int, int], *, pairs: bool) -> Compared:
    """BatchQKApplyRotaryPosIdsCosSinCache: 16 threads a head of 128, cos and sin in fp32."""
    at: Mapping[str, Any] = {"products": FP32, "output": BF16, "contraction": "cos"}
    positions = (torch.arange(tokens, dtype=torch.int32) * 37) % 512
    cache = table(512, 128, torch.float32)
    q, k = (drawn(cache[positions.long()], count, 128, pairs=pairs) for count in heads)
    new_q, new_k = torch.zeros_like(q), torch.zeros_like(k)
    strides = [part for count in (heads[0], heads[1], heads[0], heads[1]) for part in (count * 128, 128)]
    args: list[Argument] = [q, k, new_q, new_k, cache, positions, tokens, heads[0], heads[1], 128, *strides]
    name = f"BatchQKApplyRotaryPosIdsCosSinCacheKernelILb{int(pairs)}"
    launch = timed(lambda: flashinfer().launch(name, -(-tokens // 8), (16, 8), args))
    expected = by_node(q, k, cache[positions.long()], at, pairs=pairs)
    control = by_node(q, k, cache[positions.long()], {**at, "contraction": "none"}, pairs=pairs)[0]
    shape = f"{tokens} x {heads[0]}+{heads[1]}, {'pairs' if pairs else 'halves'}"
    return compare(
        "FlashInfer BatchQKApplyRotaryPosIdsCosSinCacheKernel", shape,
        launch, [(new_q, expected[0]), (new_k, expected[1])], against="`rope`",
        claims=[Claim("rope", at, lambda values: by_node(q, k, cache[positions.long()], values, pairs=pairs))],
        control=control,
    )  # fmt: skip
