"""SGLang's own CUDA kernels, which it compiles when it is used: norms of heads, rotary embedding, gated activation."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch

from moeparity import ptx
from tests.engines.cuda import activations, ropes, toolchain
from tests.engines.cuda.claims import Claim
from tests.engines.cuda.compared import BF16, FP32, Compared, Timed, compare, plan_values, timed
from tests.engines.cuda.norms import EPS, Rows, norm_claims, profile_norm

_T = "sglang::bf16_t"


@lru_cache(maxsize=1)
def qk_norm() -> ptx.Module:
    """qknorm.cuh for heads of 128."""
    params = "(const __grid_constant__ sglang::QKNormParams);\n"
    return ptx.load(
        toolchain.sglang(
            "elementwise/qknorm.cuh", f"template __global__ void sglang::fused_qknorm_half_warp<false, {_T}>{params}"
        )
    )


@lru_cache(maxsize=1)
def rotary() -> ptx.Module:
    """rope.cuh for heads of 128 in halves and of 64 in pairs."""
    params = "(const __grid_constant__ sglang::FusedRopeParams);\n"
    instances = "".join(
        f"template __global__ void sglang::fused_rope_kernel<{form}, {dim}, false, {_T}, {_T}, int64_t, {n}>{params}"
        for form, dim, n in (("true", 128, 16), ("false", 64, 8))
    )
    return ptx.load(toolchain.sglang("elementwise/rope.cuh", instances))


@lru_cache(maxsize=1)
def activation() -> ptx.Module:
    """activation.cuh with the flags that SGLang gives it."""
    kind = "sglang::ActivationKind::kSiLU, false, false"
    params = "(const __grid_constant__ sglang::ActivationParams);\n"
    instance = f"template __global__ void sglang::act_and_mul_kernel<{_T}, {kind}>{params}"
    return ptx.load(toolchain.sglang("elementwise/activation.cuh", instance, *toolchain.FAST_MATH))


def launched_head_norms(
    rows: Rows, tokens: int, heads: int, groups: int, k_weight: torch.Tensor
) -> tuple[Timed, torch.Tensor]:
    """The launch, and the rows as it left them."""
    x, stride = rows.x.clone(), (heads + groups) * 128
    params = ptx.Struct("PPqqIIfPPI0P", (x, x, stride, stride, heads, groups, EPS, rows.weight, k_weight, tokens))
    blocks = -(-rows.rows // 2 // 4)
    return timed(lambda: qk_norm().launch("fused_qknorm_half_warp", blocks, 128, [params])), x


def head_norms(tokens: int, heads: int, groups: int) -> Compared:
    """`fused_qknorm`: q and k beside each other, two heads of 128 a warp, 4 warps a block."""
    rows = Rows.drawn(128, tokens * (heads + groups))
    flipped_weight = rows.weight.flip(0).contiguous()
    launch, x = launched_head_norms(rows, tokens, heads, groups, flipped_weight)

    def by_node(order: str) -> torch.Tensor:
        parts = rows.x.view(tokens, heads + groups, 128).split([heads, groups], 1)
        normed_parts = (
            profile_norm(part.contiguous(), w, order)
            for part, w in zip(parts, (rows.weight, flipped_weight), strict=True)
        )
        return torch.cat(list(normed_parts), 1).view(rows.rows, 128)

    q = rows.x.view(tokens, heads + groups, 128)[:, :heads].reshape(-1, 128)
    order = "sglang.qk_rms_norm"
    return compare(
        "SGLang fused_qknorm_half_warp", f"{tokens} x {heads}+{groups} x 128", launch, [(x, by_node(order))],
        against=f"`order: {order}`", claims=norm_claims(q, rows, order), control=by_node("sequential"),
    )  # fmt: skip


def rope(tokens: int, heads: int, groups: int, *, pairs: bool, exact: bool = True) -> Compared:
    """`fused_rope_kernel`: cos and sin in fp32; `exact`: numbers that bf16 holds, so that products are exact, and tell
    of no contraction. Else it is as ptxas 13.5.37 contracts.
    """
    dim, at = (
        (64, plan_values("sglang", "deepseek_v3", "rope"))
        if pairs
        else (128, plan_values("sglang", "qwen3_moe", "rope"))
    )
    positions = (torch.arange(tokens) * 37) % 512
    cache = ropes.table(512, dim, BF16 if exact else FP32).to(FP32)
    at = at if exact else {**at, "contraction": "cos"}
    q, k = (ropes.drawn(cache[positions], count, dim, pairs=pairs) for count in (heads, groups))
    x = torch.cat([q, k], 1).contiguous()
    stride = (heads + groups) * dim * 2
    params = ptx.Struct("PPPPqqqIII0P", (x, x, cache, positions, stride, stride, dim * 2, heads, groups, tokens))
    threads = 8 if pairs else 16
    blocks = -(-tokens * (heads + groups) * threads // 128)
    name = f"fused_rope_kernelILb{int(not pairs)}ELl{dim}"
    launch = timed(lambda: rotary().launch(name, blocks, 128, [params]))

    def by_node(values: Mapping[str, Any]) -> list[torch.Tensor]:
        return ropes.by_node(q, k, cache[positions], values, pairs=pairs)

    expected = by_node(at)
    return compare(
        "SGLang fused_rope_kernel", f"{tokens} x {heads}+{groups} x {dim}, {'pairs' if pairs else 'halves'}", launch,
        list(zip(x.split([heads, groups], 1), expected, strict=True)), against="`rope`",
        claims=[Claim("rope", at, by_node)],
        control=by_node({**at, "products": BF16} if exact else {**at, "contraction": "none"})[0],
    )  # fmt: skip


def silu_and_mul(tokens: int, width: int) -> Compared:
    """`act_and_mul_kernel`: vectors of 16 bytes, 256 threads a block."""
    at = plan_values("sglang", "deepseek_v3", "swiglu")
    x, y = activations.gates(tokens, width), torch.zeros(tokens, width, dtype=BF16)
    params = ptx.Struct("PPIIPIfPPI0P", (x, y, width, tokens, 0, 1, 0.0, 0, 0, 0))
    blocks = -(-tokens * width // 8 // 256)
    launch = timed(lambda: activation().launch("act_and_mul_kernel", blocks, 256, [params]))
    return compare(
        "SGLang act_and_mul_kernel (silu)", f"{tokens} x {width}", launch, [(y, activations.by_node(x, at))],
        against="`swiglu`, within `experts` too", claims=activations.claims(x, at),
        control=activations.by_node(x, {**at, "activation": BF16}), flags=toolchain.FAST_MATH,
    )  # fmt: skip
