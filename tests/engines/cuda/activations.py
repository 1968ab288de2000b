"""Gated activations: vLLM's and FlashInfer's silu_and_mul against the node `swiglu`, gpt-oss's clamped one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch

from moeparity import ptx
from moeparity.ops.kernels.elementwise import swiglu
from moeparity.ptx.launch_arguments import Argument
from tests.engines.cuda import toolchain
from tests.engines.cuda.claims import Claim
from tests.engines.cuda.compared import BF16, FP32, Compared, compare, plan_values, timed


@lru_cache(maxsize=1)
def vllm() -> ptx.Module:
    """csrc/activation_kernels.cu."""
    return ptx.load(toolchain.vllm("activation_kernels.cu"))


@lru_cache(maxsize=1)
def flashinfer() -> ptx.Module:
    """activation.cuh with the functions that its JIT writes into the file."""
    python = (toolchain.FLASHINFER_DATA.parent / "jit" / "activation.py").read_text()
    functions = "".join(re.findall(r'_cu_str = r"""(.*?)"""', python, re.DOTALL))
    signature = "(bf16*, const bf16*, const int);\n"
    instances = "".join(
        f"template __global__ void flashinfer::activation::act_and_mul_kernel<bf16, silu, {size}>{signature}"
        for size in (8, 4, 2, 1)
    )
    head = "using bf16 = __nv_bfloat16;\nusing namespace flashinfer;\n"
    return ptx.load(toolchain.flashinfer("flashinfer/activation.cuh", head + functions + instances))


def gates(tokens: int, width: int) -> torch.Tensor:
    """[tokens, 2 width] in bf16, from tiny to beyond where exp overflows."""
    g = torch.Generator().manual_seed(tokens * 1000 + width)
    size = 2.0 ** torch.randint(-8, 8, (tokens, 2 * width), generator=g)
    return (torch.randn(tokens, 2 * width, generator=g) * size).to(BF16)


def by_node(x: torch.Tensor, at: Mapping[str, Any]) -> torch.Tensor:
    """The node `swiglu` on gate and up beside each other."""
    gate, up = x.chunk(2, dim=-1)
    return swiglu(gate, up, w={}, p={}, at=at)


def claims(x: torch.Tensor, at: Mapping[str, Any]) -> list[Claim]:
    """Of a gated activation by itself, and between the projections of experts."""
    within = {"activation": at["activation"], "product": at["output"], "logistic": at["logistic"]}

    def node(values: Mapping[str, Any]) -> list[torch.Tensor]:
        return [by_node(x, {**values, "output": values["product"]})]

    return [Claim("swiglu", at, lambda values: [by_node(x, values)]), Claim("experts", within, node)]


def vllm_silu_and_mul(tokens: int, width: int) -> Compared:
    """LAUNCH_ACTIVATION_GATE_KERNEL: vectors of 8 where they divide the width, else single elements; on sm_90."""
    at = plan_values("vllm-eager", "qwen3_moe", "experts")
    at = {"activation": at["activation"], "output": at["product"], "logistic": at["logistic"]}
    x, y = gates(tokens, width), torch.zeros(tokens, width, dtype=BF16)
    vector = width % 8 == 0
    act = "silu_kernelIS2_EET_RKS5_fEEXadL_ZNS_18packed_silu_kernelIS3_EES5_S7_fEE"
    name = f"act_and_mul_kernelIN3c108BFloat16E14__nv_bfloat162XadL_ZNS_11{act}Lb1ELb{int(vector)}ELb0ELb0E"
    threads = min(width // 8 if vector else width, 1024)
    args: list[Argument] = [y, x, width, 0.0, 1.0, 0.0]
    launch = timed(lambda: vllm().launch(name, tokens, threads, args))
    return compare(
        "vLLM act_and_mul_kernel (silu)", f"{tokens} x {width}", launch, [(y, by_node(x, at))],
        against="`swiglu`, within `experts` too", claims=claims(x, at),
        control=by_node(x, {**at, "logistic": "native", "activation": FP32}),
    )  # fmt: skip


def flashinfer_silu_and_mul(tokens: int, width: int) -> Compared:
    """The widest vector that divides the width, 256 threads at most (jit/activation.py)."""
    at = plan_values("flashinfer-fused", "llama", "swiglu")
    x, y = gates(tokens, width), torch.zeros(tokens, width, dtype=BF16)
    size = next(size for size in (8, 4, 2, 1) if width % size == 0)
    args: list[Argument] = [y, x, width]
    name = f"act_and_mul_kernelI13__nv_bfloat16 siluRK Lj{size}E"
    launch = timed(lambda: flashinfer().launch(name, tokens, min(width // size, 256), args))
    return compare(
        "FlashInfer act_and_mul_kernel (silu)", f"{tokens} x {width}", launch, [(y, by_node(x, at))],
        against="`swiglu`",
        claims=[Claim("swiglu", at, lambda values: [by_node(x, values)])],
        control=by_node(x, {**at, "activation": BF16}),
    )  # fmt: skip
