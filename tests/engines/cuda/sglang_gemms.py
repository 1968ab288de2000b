"""SGLang's GEMMs of few rows, which it compiles when it is used: DeepSeek's gate on CUDA cores, and the projections to
latents on tensor cores.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch

from moeparity import ptx
from moeparity.ops.kernels.linear import gate
from tests.engines.cuda import toolchain
from tests.engines.cuda.claims import Claim
from tests.engines.cuda.compared import BF16, FP32, Compared, compare, plan_values, timed
from tests.engines.products import FURTHER
from tests.engines.triton_kernels.dots import opposed as cancelling
from tests.engines.triton_kernels.dots import paired

HIDDEN, EXPERTS = 7168, 256
COLUMNS = 2
"""Experts of a block, so that 132 SMs take all blocks at once."""
THREADS = HIDDEN // 16
ROWS = (1, 3)
ORDER = f"threads({THREADS}, vector=8) | fold_hi(32) | sequential"
"""A thread's numbers in ascending order, lanes of a warp from both ends, warps ascending."""


@lru_cache(maxsize=1)
def _tiny() -> ptx.Module:
    """tiny_gemm.cuh for DeepSeek's gate, bf16 times bf16 in fp32, of these numbers of rows."""
    trait = f"sglang::GEMMTraitN<{EXPERTS}, {HIDDEN}, {COLUMNS}, 32, sglang::bf16_t>"
    instances = "".join(
        f"template __global__ void sglang::tiny_n_gemm_kernel<{trait}, {rows}, float, false, sglang::bf16_t>"
        "(const sglang::TinyGEMMParams);\n"
        for rows in ROWS
    )
    return ptx.load(toolchain.sglang("gemm/tiny_gemm.cuh", instances, "-O3"))


def opposed(rows: int, columns: int, seed: int) -> torch.Tensor:
    """bf16, of many sizes: what a sum in fp32 leaves goes by its order."""
    g = torch.Generator().manual_seed(seed)
    sizes = 2.0 ** torch.randint(-6, 7, (rows, columns), generator=g)
    return (torch.randn(rows, columns, generator=g) * sizes).to(BF16)


def tiny_gate(rows: int, experts: int = 8) -> Compared:
    """`tiny_gemm_bf16` of the first experts: 448 threads have 8 numbers of each half of K, then warps, then a block."""
    # Less than fp16 holds, so that it shows in which dtype operands are.
    x, weight = opposed(rows, HIDDEN, rows), opposed(experts, HIDDEN, 9) / 2**20
    out = torch.zeros(rows, EXPERTS)
    params = ptx.Struct("PPPq", (out, x, weight, HIDDEN))
    name = next(name for name in _tiny().kernels if f"ELj{rows}EfLb0E" in name)
    launch = timed(lambda: _tiny().launch(name, experts // COLUMNS, THREADS, [params]))
    at = {**plan_values("sglang", "deepseek_v3", "gate", rows=rows), "order": ORDER}

    def by_node(values: Mapping[str, Any]) -> list[torch.Tensor]:
        return [gate(x[None], w={"weight": weight}, p={}, at=FURTHER | {"output": FP32} | dict(values))[0]]

    return compare(
        "SGLang tiny_n_gemm_kernel", f"{rows} x {HIDDEN} x {EXPERTS}, {experts} of them", launch,
        [(out[:, :experts].contiguous(), by_node(at)[0])], against="`gate`", claims=[Claim("gate", at, by_node)],
        control=by_node({**at, "order": "sequential"})[0],
    )  # fmt: skip


LATENTS, TILE, STAGES = 2112, 16, 16
"""Outputs of q_a and kv_a together, those of a block, and buffers that warps fill and empty by turns."""
STEP, COLUMNS_OF_X = 256, 8


@lru_cache(maxsize=1)
def _projections() -> ptx.Module:
    """dsv3_fused_a_gemm.cuh for DeepSeek-V3 and up to 8 rows."""
    sizes = f"1, {LATENTS}, {HIDDEN}, {TILE}, {COLUMNS_OF_X}, {STEP}, {STAGES}"
    bf16 = "sglang::bf16_t"
    instance = f"sglang::fused_a_gemm_kernel<{sizes}>({bf16}*, {bf16} const*, {bf16} const*, int);\n"
    return ptx.load(toolchain.sglang("gemm/dsv3_fused_a_gemm.cuh", f"template __global__ void {instance}"))


def projected(rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x [rows, HIDDEN] and weight [TILE, HIDDEN] of products that nearly cancel, and bf16 [rows, TILE] of one block.

    Four warps copy and four multiply, each of these a quarter of every step; they wait for each other at `mbarrier`.
    """
    g = torch.Generator().manual_seed(rows)
    x, weight = paired(torch.randn(rows, HIDDEN, generator=g)).to(BF16), cancelling(TILE, HIDDEN, seed=1)
    out = torch.zeros(rows, LATENTS, dtype=BF16)
    shared = 2 * STEP * STAGES * (TILE + COLUMNS_OF_X) + 1024
    (name,) = _projections().kernels
    # By turns in a drawn order, so that no warp waits long for the others.
    _projections().launch(name, 1, 256, [out, weight, x, rows], shared=shared, seed=0)
    return x, weight, out[:, :TILE]
