"""RMSNorm of vLLM and FlashInfer, alone and with the residual's addition, against the node `rms_norm`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from moeparity import ptx
from moeparity.ops.kernels.elementwise import add
from moeparity.ops.kernels.norm import rms_norm
from moeparity.ptx.launch_arguments import Argument
from tests.engines.cuda import toolchain
from tests.engines.cuda.claims import Claim
from tests.engines.cuda.compared import BF16, FP32, Compared, Timed, compare, timed

EPS = 1e-6
_T = "using bf16 = __nv_bfloat16;\n"
_NUMBERS = "const uint32_t, const uint32_t, const uint32_t"
_NORMS = (
    f"{_T}template __global__ void flashinfer::norm::RMSNormKernel<8, bf16>("
    f"bf16*, bf16*, bf16*, {_NUMBERS}, float, float);\n"
    "template __global__ void flashinfer::norm::FusedAddRMSNormKernel<8, bf16>("
    f"bf16*, bf16*, bf16*, {_NUMBERS}, float, float);\n"
    "template __global__ void flashinfer::norm::QKRMSNormKernel<8, bf16>("
    f"bf16*, bf16*, bf16*, {_NUMBERS}, {_NUMBERS}, const uint32_t, float, float);\n"
)


@lru_cache(maxsize=1)
def flashinfer() -> ptx.Module:
    """norm.cuh for bf16."""
    return ptx.load(toolchain.flashinfer("flashinfer/norm.cuh", _NORMS))


@lru_cache(maxsize=1)
def vllm() -> ptx.Module:
    """csrc/layernorm_kernels.cu."""
    return ptx.load(toolchain.vllm("layernorm_kernels.cu"))


def values(order: str, *, offset: int = 0, ranks: int = 1, statistic: str = "mean_square") -> Mapping[str, Any]:
    """RMSNorm as the profiles of servers have it on an H200: squares and everything else in fp32, one rounding to bf16.

    FlashInfer's and TensorRT-LLM's CUDA kernels are compiled with -use_fast_math, whose division is approximate.
    """
    mean = "div_full" if order.startswith(("flashinfer.rms_norm", "trtllm.")) else "divide"
    return {"offset": float(offset), "weight": FP32, "output": BF16, "scaled": FP32, "normalized": FP32,
            "eps": "config", "rsqrt": "approx", "statistic": statistic, "order": order, "mean": mean,
            "square": FP32, "association": "x_rstd_first", "tensor": ranks}  # fmt: skip


def profile_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    order: str,
    *,
    offset: int = 0,
    ranks: int = 1,
    heads: int | None = None,
    statistic: str = "mean_square",
) -> torch.Tensor:
    """x [rows, hidden] by the node."""
    at = values(order, offset=offset, ranks=ranks, statistic=statistic)
    return rms_norm(x, w={"weight": weight}, p={"eps": EPS, "heads": heads}, at=at)


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Rows of hidden states with a residual and a weight, in bf16, of a seed; rows differ in size."""

    hidden: int
    rows: int
    x: torch.Tensor
    residual: torch.Tensor
    weight: torch.Tensor

    @classmethod
    def drawn(cls, hidden: int, rows: int) -> Rows:
        """Of a seed that is the shape's."""
        g = torch.Generator().manual_seed(hidden * 1000 + rows)
        size = 3 * torch.rand(rows, 1, generator=g)
        # Every tenth weight is less than fp16 holds.
        small = torch.where(torch.arange(hidden) % 10 == 3, 2.0**-20, 1.0)
        return cls(
            hidden=hidden,
            rows=rows,
            x=(torch.randn(rows, hidden, generator=g) * size).to(BF16),
            residual=torch.randn(rows, hidden, generator=g).to(BF16),
            weight=((1 + 0.1 * torch.randn(hidden, generator=g)) * small).to(BF16),
        )

    @property
    def shape(self) -> str:
        """As the table names it."""
        return f"{self.rows} x {self.hidden}"


def norm_claims(
    x: torch.Tensor, rows: Rows, order: str, *, offset: int = 0, statistic: str = "mean_square"
) -> list[Claim]:
    """What equal bits of the norm of x would verify; of the root, `roots` has more rows."""
    choices = values(order, offset=offset, statistic=statistic)
    at = {name: value for name, value in choices.items() if name not in {"tensor", "rsqrt"}}

    def node(changed: Mapping[str, Any]) -> list[torch.Tensor]:
        return [rms_norm(x, w={"weight": rows.weight}, p={"eps": EPS, "heads": None}, at={**choices, **changed})]

    # An order with fma has no rounded squares.
    beside = {"square": {"order": "sequential", "statistic": "mean_square"}}
    return [Claim("rms_norm", at, node, beside)]


def add_claims(rows: Rows) -> list[Claim]:
    """Of the addition before a norm that reads the sum before it is rounded."""

    def node(values: Mapping[str, Any]) -> list[torch.Tensor]:
        return [add(rows.x, rows.residual, w={}, p={}, at=values)]

    return [Claim("add", {"output": BF16}, node, edges={"output->rms_norm": "fp32"})]


def flashinfer_rms_norm(rows: Rows, *, gemma: bool = False) -> Compared:
    """`RMSNorm` in norm.cuh launches a warp for each 32 of hidden / 8 threads; Gemma's has 1 added to the weight."""
    h, y, warps = rows.hidden, torch.zeros_like(rows.x), -(-min(1024, rows.hidden // 8) // 32)
    args: list[Argument] = [rows.x.clone(), rows.weight, y, h, h, h, float(gemma), EPS]
    launch = timed(lambda: flashinfer().launch("13RMSNormKernel", rows.rows, (32, warps), args, shared=4 * warps))
    order = "flashinfer.rms_norm"
    expected = profile_norm(rows.x, rows.weight, order, offset=int(gemma))
    return compare(
        f"FlashInfer RMSNormKernel{' (gemma)' if gemma else ''}", rows.shape, launch, [(y, expected)],
        against=f"`order: {order}`", claims=norm_claims(rows.x, rows, order, offset=int(gemma)),
        control=profile_norm(rows.x, rows.weight, "sequential", offset=int(gemma)),
    )  # fmt: skip


def flashinfer_add_rms_norm(rows: Rows) -> Compared:
    """`FusedAddRMSNorm`: the norm is of the fp32 sum, the residual stored is that sum rounded."""
    h, warps = rows.hidden, -(-min(1024, rows.hidden // 8) // 32)
    x, residual = rows.x.clone(), rows.residual.clone()
    args: list[Argument] = [x, residual, rows.weight, h, h, h, 0.0, EPS]
    shared = 16 * -(-warps // 4) + 4 * h
    launch = timed(lambda: flashinfer().launch("FusedAddRMSNorm", rows.rows, (32, warps), args, shared=shared))
    total, order = rows.x.float() + rows.residual.float(), "flashinfer.rms_norm"
    pairs = [(x, profile_norm(total, rows.weight, order)), (residual, total.to(BF16))]
    return compare(
        "FlashInfer FusedAddRMSNormKernel", rows.shape, launch, pairs, against=f"`order: {order}`, sum in fp32",
        claims=[*norm_claims(total, rows, order), *add_claims(rows)],
        control=profile_norm(total.to(BF16), rows.weight, order),
    )  # fmt: skip


def flashinfer_qk_rms_norm(tokens: int, heads: int, dim: int) -> Compared:
    """`QKRMSNorm`: a warp for each head, 4 warps a block; the norm of heads, as in Qwen3."""
    rows = Rows.drawn(dim, tokens * heads)
    y = torch.zeros_like(rows.x)
    strides = [heads * dim, dim, heads * dim, dim]
    args: list[Argument] = [rows.x.clone(), rows.weight, y, dim, tokens, heads, *strides, 0.0, EPS]
    launch = timed(lambda: flashinfer().launch("QKRMSNormKernel", -(-tokens * heads // 4), (32, 4), args, shared=16))
    order = "flashinfer.rms_norm"
    return compare(
        "FlashInfer QKRMSNormKernel", f"{tokens} x {heads} x {dim}", launch,
        [(y, profile_norm(rows.x, rows.weight, order))], against=f"`order: {order}`",
        claims=norm_claims(rows.x, rows, order),
        control=profile_norm(rows.x, rows.weight, "sequential"),
    )  # fmt: skip


def launched_vllm_rms_norm(rows: Rows) -> tuple[Timed, torch.Tensor]:
    """`rms_norm` of csrc/layernorm_kernels.cu: 1024 threads at most, 256 from 256 tokens on; and its output."""
    h, y, vector = rows.hidden, torch.zeros_like(rows.x), math.gcd(8, rows.hidden)
    threads = min(h // vector, 1024 if rows.rows < 256 else 256)
    args: list[Argument] = [y, rows.x.clone(), h, 0, 0, 0, 0, rows.weight, 0, EPS, rows.rows, h]
    name = f"rms_norm_kernelIN3c108BFloat16ELi{vector}ELi2ELb1"
    return timed(lambda: vllm().launch(name, rows.rows, threads, args)), y


def vllm_rms_norm(rows: Rows) -> Compared:
    """Against the node."""
    launch, y = launched_vllm_rms_norm(rows)
    return compare(
        "vLLM rms_norm_kernel", rows.shape, launch, [(y, profile_norm(rows.x, rows.weight, "vllm.rms_norm"))],
        against="`order: vllm.rms_norm`", claims=norm_claims(rows.x, rows, "vllm.rms_norm"),
        control=profile_norm(rows.x, rows.weight, "sequential"),
    )  # fmt: skip


def vllm_add_rms_norm(rows: Rows) -> Compared:
    """`fused_add_rms_norm`: the norm is of the rounded residual."""
    h, width, order = rows.hidden, 8 if rows.hidden % 8 == 0 else 0, "vllm.fused_add_rms_norm"
    x, residual = rows.x.clone(), rows.residual.clone()
    args: list[Argument] = [x, h, residual, rows.weight, EPS, rows.rows, h, h]
    name, threads = f"fused_add_rms_norm_kernelIN3c108BFloat16ELi{width}ELb1", min(h, 1024 if rows.rows < 256 else 256)
    launch = timed(lambda: vllm().launch(name, rows.rows, threads, args))
    total = (rows.x.float() + rows.residual.float()).to(BF16)
    pairs = [(x, profile_norm(total, rows.weight, order)), (residual, total)]
    return compare(
        "vLLM fused_add_rms_norm_kernel", rows.shape, launch, pairs, against=f"`order: {order}`",
        claims=norm_claims(total, rows, order), control=profile_norm(total, rows.weight, "sequential"),
    )  # fmt: skip
