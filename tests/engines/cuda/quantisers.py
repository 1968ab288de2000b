"""Eight bits: vLLM's quantisers of activations and its stores into the cache, against `numerics` and `kv_cache`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch

from moeparity import ptx
from moeparity.numerics.quantised import to_fp8
from moeparity.ops.kernels.kv_cache import kv_cache
from moeparity.ptx.launch_arguments import Argument
from tests.engines.cuda import toolchain
from tests.engines.cuda.claims import Claim
from tests.engines.cuda.compared import BF16, Compared, compare, plan_values, timed
from tests.engines.cuda.norms import EPS, Rows, profile_norm

FP8 = torch.float8_e4m3fn
LARGEST = 448.0
_T = "IN3c108BFloat16ENS1_13Float8_e4m3fnE"


@lru_cache(maxsize=4)
def module(name: str) -> ptx.Module:
    """One of vLLM's files."""
    return ptx.load(toolchain.vllm(name))


def numbers(rows: int, width: int) -> torch.Tensor:
    """[rows, width] in bf16, from where e4m3 is subnormal to beyond its largest, with ties."""
    g = torch.Generator().manual_seed(rows * 1000 + width)
    x = (torch.randn(rows, width, generator=g) * 2.0 ** torch.randint(-12, 10, (rows, width), generator=g)).to(BF16)
    x[:, ::7] = torch.arange(x[:, ::7].numel()).reshape(rows, -1).to(BF16) / 16
    return x


def _quantised(x: torch.Tensor) -> torch.Tensor:
    return to_fp8(x, FP8, saturates=True)


def _telling_scale(x: torch.Tensor) -> torch.Tensor:
    """A scale under which a quotient and a product with the reciprocal are not the same in eight bits.

    It makes some number of x 17 / 16, half way between two numbers of e4m3, or nearly.
    """
    for number in x.flatten().tolist():
        scale = torch.tensor([number / 1.0625]).abs()
        tie, product = x / scale, x * (1 / scale)
        if number and not torch.equal(_quantised(tie).view(torch.uint8), _quantised(product).view(torch.uint8)):
            return scale
    raise AssertionError("no scale tells them apart")


def _empty(rows: int, width: int) -> torch.Tensor:
    return torch.zeros(rows, width, dtype=torch.uint8)


def static_fp8(rows: int, width: int) -> Compared:
    """`static_scaled_fp8_quant`, one scale for all: numbers times 1 / scale."""
    x, y = numbers(rows, width), _empty(rows, width)
    scale = _telling_scale(x.float())
    args: list[Argument] = [y, x, scale, width, width, width, rows, width, 0, 0]
    loaded = module("quantization/w8a8/fp8/common.cu")
    launch = timed(lambda: loaded.launch(f"strided_group_shape{_T}Lb1ELb1E", rows, 256, args))
    return compare(
        "vLLM scaled_fp8_quant_kernel_strided_group_shape", f"{rows} x {width}", launch,
        [(y, _quantised(x.float() * (1 / scale)).view(torch.uint8))], against="x * (1 / scale), `to_fp8`",
        control=_quantised(x.float() / scale).view(torch.uint8),
    )  # fmt: skip


def per_token_fp8(rows: int, width: int) -> Compared:
    """`dynamic_per_token_scaled_fp8_quant`: the row's highest magnitude over 448, at least 1 / (448 * 512); divided."""
    x, y, scales = numbers(rows, width), _empty(rows, width), torch.zeros(rows)
    x[0] = 0
    args: list[Argument] = [y, scales, x, 0, width, width, width]
    loaded = module("quantization/w8a8/fp8/common.cu")
    launch = timed(lambda: loaded.launch(f"dynamic_per_token_scaled_fp8_quant{''} {_T}", rows, min(width, 256), args))
    expected = (x.float().abs().amax(-1) / LARGEST).clamp(min=1 / (LARGEST * 512))
    return compare(
        "vLLM dynamic_per_token_scaled_fp8_quant_kernel_strided", f"{rows} x {width}", launch,
        [(y, _quantised(x.float() / expected[:, None]).view(torch.uint8)), (scales, expected)],
        against="x / scale, `to_fp8`", control=_quantised(x.float() * (1 / expected[:, None])).view(torch.uint8),
    )  # fmt: skip


def per_group_fp8(rows: int, width: int) -> Compared:
    """`per_token_group_quant_fp8` of groups of 128: magnitudes of at least eps over 448; numbers times 1 / scale."""
    x, y, groups = numbers(rows, width), _empty(rows, width), rows * width // 128
    scales, least = torch.zeros(groups), 1e-10
    args: list[Argument] = [x, y, scales, groups, least, -LARGEST, LARGEST, 0, 0]
    loaded = module("quantization/w8a8/fp8/per_token_group_quant.cu")
    name = "group_quant_8bit_register_kernelIN3c108BFloat16ENS0_13Float8_e4m3fnELb0ELb0E"
    launch = timed(lambda: loaded.launch(name, -(-groups // 32), 256, args))
    grouped = x.float().reshape(groups, 128)
    expected = grouped.abs().amax(-1).clamp(min=least) / LARGEST
    return compare(
        "vLLM per_token_group_quant_8bit_register_kernel", f"{rows} x {width}", launch,
        [(y.view(groups, 128), _quantised(grouped * (1 / expected[:, None])).view(torch.uint8)), (scales, expected)],
        against="x * (1 / scale), `to_fp8`",
        control=_quantised(grouped / expected[:, None]).view(torch.uint8),
    )  # fmt: skip


def norm_fp8(rows: Rows) -> Compared:
    """`rms_norm_static_fp8_quant`: the norm rounded to bf16, then times 1 / scale."""
    normed = profile_norm(rows.x, rows.weight, "vllm.rms_norm").float()
    y, scale, vector = _empty(rows.rows, rows.hidden), _telling_scale(normed), math.gcd(8, rows.hidden)
    threads = min(rows.hidden // vector, 1024 if rows.rows < 256 else 256)
    args: list[Argument] = [y, rows.x.clone(), rows.hidden, rows.weight, scale, EPS, rows.rows, rows.hidden]
    loaded = module("layernorm_quant_kernels.cu")
    launch = timed(
        lambda: loaded.launch(f"32rms_norm_static_fp8_quant_kernel{_T}Li{vector}E", rows.rows, threads, args)
    )

    def again(at: Mapping[str, Any]) -> list[torch.Tensor]:
        normed = profile_norm(rows.x, rows.weight, at["order"]).float()
        return [_quantised(normed * (1 / scale)).view(torch.uint8)]

    return compare(
        "vLLM rms_norm_static_fp8_quant_kernel", rows.shape, launch,
        [(y, _quantised(normed * (1 / scale)).view(torch.uint8))], against="`order: vllm.rms_norm`, `to_fp8`",

        claims=[Claim("rms_norm", {"order": "vllm.rms_norm"}, again)],
        control=_quantised(normed / scale).view(torch.uint8),
    )  # fmt: skip


def _without_scales(at: Mapping[str, Any]) -> Mapping[str, Any]:
    """Values that are the kernel's, not this comparison's."""
    return {name: value for name, value in at.items() if name not in {"k_scale", "v_scale"}}


def cache_store(tokens: int, heads: int, dim: int, *, fp8: bool) -> Compared:
    """`reshape_and_cache_flash`, keys and values by slots of blocks of 16; read back as the node does."""
    at = {**plan_values("vllm-fp8-kv" if fp8 else "vllm", "qwen3_moe", "kv_cache")}
    scales = torch.tensor([0.3]), torch.tensor([0.7])
    at |= {"scale": "static", "k_scale": scales[0].item(), "v_scale": scales[1].item()} if fp8 else {}
    k, v = (numbers(tokens, heads * dim).flip(at) for at in (0, 1))
    cache = [torch.zeros(tokens + 16, heads * dim, dtype=torch.uint8 if fp8 else BF16) for _ in "kv"]
    slots = torch.randperm(tokens + 16, generator=torch.Generator().manual_seed(1))[:tokens]
    width = heads * dim
    args: list[Argument] = [k, v, *cache, slots, 16 * width, width, dim, width, width, heads, dim, 16, *scales, 0]
    kind = "hLNS_18Fp8KVCacheDataTypeE1E" if fp8 else "S1_LNS_18Fp8KVCacheDataTypeE0E"
    loaded = module("cache_kernels.cu")
    launch = timed(
        lambda: loaded.launch(f"reshape_and_cache_flash_kernelI13__nv_bfloat16{kind}", tokens, min(width, 512), args)
    )
    stored = [part[slots] for part in cache]
    if fp8:
        stored = [(x.view(FP8).float() * s).to(BF16) for x, s in zip(stored, scales, strict=True)]

    def read(values: Mapping[str, Any]) -> list[torch.Tensor]:
        key, value = (x.view(1, tokens, heads, dim) for x in (k.clone(), v.clone()))
        outputs = kv_cache(key.transpose(1, 2), value, w={}, p={}, at=values)
        return [x[0].transpose(0, 1).reshape(tokens, width) for x in outputs]

    return compare(
        "vLLM reshape_and_cache_flash_kernel", f"{tokens} x {heads} x {dim}{', fp8' if fp8 else ''}", launch,
        list(zip(stored, read(at), strict=True)), against="`kv_cache`",
        claims=[Claim("kv_cache", _without_scales(at), lambda choices: read({**at, **choices}))],
        control=k if fp8 else None,
    )  # fmt: skip


def latent_store(tokens: int, latent: int, rope: int, *, fp8: bool) -> Compared:
    """`concat_and_cache_mla`: the latent and the rotated keys beside each other, one scale for both."""
    at = {**plan_values("vllm-fp8-kv" if fp8 else "vllm", "deepseek_v3", "kv_cache")}
    scale = torch.tensor([0.3])
    at |= {"scale": "static", "k_scale": scale.item(), "v_scale": scale.item()} if fp8 else {}
    c, pe, width = numbers(tokens, latent), numbers(tokens, rope), latent + rope
    cache = torch.zeros(tokens + 16, width, dtype=torch.uint8 if fp8 else BF16)
    slots = torch.randperm(tokens + 16, generator=torch.Generator().manual_seed(2))[:tokens]
    args: list[Argument] = [c, pe, cache, slots, 16 * width, width, latent, rope, latent, rope, 16, scale]
    kind = "hLNS_18Fp8KVCacheDataTypeE1ELb0E" if fp8 else "S1_LNS_18Fp8KVCacheDataTypeE0ELb0E"
    loaded = module("cache_kernels.cu")
    name = f"27concat_and_cache_mla_kernelI13__nv_bfloat16{kind}"
    launch = timed(lambda: loaded.launch(name, tokens, min(latent, 512), args))
    stored = cache[slots]
    stored = (stored.view(FP8).float() * scale).to(BF16) if fp8 else stored

    def read(values: Mapping[str, Any]) -> list[torch.Tensor]:
        keys, latents = kv_cache(pe[None, None], c[None], w={}, p={}, at=values)
        return [torch.cat([latents[0, 0], keys[0, 0]], dim=-1).to(stored.dtype)]

    return compare(
        "vLLM concat_and_cache_mla_kernel", f"{tokens} x {latent}+{rope}{', fp8' if fp8 else ''}", launch,
        [(stored, read(at)[0])], against="`kv_cache`",

        claims=[Claim("kv_cache", _without_scales(at), lambda choices: read({**at, **choices}))],
        control=torch.cat([c, pe], dim=-1) if fp8 else None,
    )  # fmt: skip
