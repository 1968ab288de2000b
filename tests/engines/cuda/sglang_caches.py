"""SGLang's stores into its cache, which it compiles when it is used, against the node `kv_cache`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch

from moeparity import ptx
from moeparity.ops.kernels.kv_cache import kv_cache
from tests.engines.cuda import toolchain
from tests.engines.cuda.claims import Claim
from tests.engines.cuda.compared import BF16, Compared, compare, plan_values, timed
from tests.engines.cuda.quantisers import numbers

WIDTH = 512
"""Of the keys, and of the values, of a token: four heads of 128."""
LATENT, ROPE = 512, 64
SPARE = 16
"""Slots that no token has."""


@lru_cache(maxsize=1)
def _heads() -> ptx.Module:
    """kvcache.cuh for rows of WIDTH, a warp for each."""
    instance = f"store_kvcache_kernel<{2 * WIDTH}, {2 * WIDTH}, 32, false, int64_t>"
    params = "(const __grid_constant__ sglang::StoreKVCacheParams);\n"
    return ptx.load(toolchain.sglang("elementwise/kvcache.cuh", f"template __global__ void sglang::{instance}{params}"))


@lru_cache(maxsize=1)
def _latents() -> ptx.Module:
    """set_mla_kv_buffer.cuh for DeepSeek's widths."""
    instance = f"set_mla_kv_buffer_kernel<{2 * LATENT}, {2 * ROPE}, false, int64_t>"
    params = "(const __grid_constant__ sglang::SetMlaKVBufferParams);\n"
    header = "elementwise/set_mla_kv_buffer.cuh"
    return ptx.load(toolchain.sglang(header, f"template __global__ void sglang::{instance}{params}"))


def _slots(tokens: int) -> torch.Tensor:
    """A slot for each token, in no order; 0 is none."""
    return 1 + torch.randperm(tokens + SPARE - 1, generator=torch.Generator().manual_seed(tokens))[:tokens]


def head_store(tokens: int) -> Compared:
    """`store_cache`: keys and values side by side, four warps a block."""
    at = plan_values("sglang", "qwen3_moe", "kv_cache")
    k, v = (numbers(tokens, WIDTH).flip(axis) for axis in (0, 1))
    caches, slots = [torch.zeros(tokens + SPARE, WIDTH, dtype=BF16) for _ in "kv"], _slots(tokens)
    stride = 2 * WIDTH
    params = ptx.Struct(
        "PPPPPqqqqqIqq0P", (k, v, *caches, slots, stride, stride, stride, stride, 1, tokens, tokens + SPARE, 0)
    )
    launch = timed(lambda: _heads().launch("store_kvcache_kernel", -(-tokens // 4), (32, 4), [params]))

    def read(values: Mapping[str, Any]) -> list[torch.Tensor]:
        keys, of_values = (x.view(1, tokens, 4, -1) for x in (k.clone(), v.clone()))
        outputs = kv_cache(keys.transpose(1, 2), of_values, w={}, p={}, at=values)
        return [x[0].transpose(0, 1).reshape(tokens, WIDTH).to(BF16) for x in outputs]

    return compare(
        "SGLang store_kvcache_kernel", f"{tokens} x {WIDTH}", launch,
        [(cache[slots], ours) for cache, ours in zip(caches, read(at), strict=True)], against="`kv_cache`",
        claims=[Claim("kv_cache", at, read)],
    )  # fmt: skip


def latent_store(tokens: int) -> Compared:
    """`set_mla_kv_buffer`: the latent and the rotated keys beside each other, a warp for each token."""
    at = plan_values("sglang", "deepseek_v3", "kv_cache")
    latent, rope, width = numbers(tokens, LATENT), numbers(tokens, ROPE), LATENT + ROPE
    cache, slots = torch.zeros(tokens + SPARE, width, dtype=BF16), _slots(tokens)
    params = ptx.Struct("PPPPqqqIq0P", (latent, rope, cache, slots, 2 * LATENT, 2 * ROPE, 2 * width, tokens, 0))
    launch = timed(lambda: _latents().launch("set_mla_kv_buffer_kernel", tokens, 32, [params]))

    def read(values: Mapping[str, Any]) -> list[torch.Tensor]:
        keys, latents = kv_cache(rope[None, None], latent[None], w={}, p={}, at=values)
        return [torch.cat([latents[0, 0], keys[0, 0]], dim=-1).to(BF16)]

    return compare(
        "SGLang set_mla_kv_buffer_kernel", f"{tokens} x {LATENT}+{ROPE}", launch, [(cache[slots], read(at)[0])],
        against="`kv_cache`", claims=[Claim("kv_cache", at, read)],
    )  # fmt: skip
