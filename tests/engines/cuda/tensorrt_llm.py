"""TensorRT-LLM's kernels of bf16 experts and its router, as FlashInfer's wheel has them, against the nodes.

They are compiled as TensorRT-LLM compiles them, without fast math. Its norms are FlashInfer's: cute_dsl.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch

from moeparity import ptx
from moeparity.ops.kernels.combine import combine
from moeparity.ptx.launch_arguments import Argument, Struct
from tests.engines.cuda import toolchain
from tests.engines.cuda.activations import by_node, claims, gates
from tests.engines.cuda.claims import Claim
from tests.engines.cuda.compared import BF16, FP32, Compared, compare, plan_values, timed
from tests.engines.cuda.routers import Case

_EXPERTS = "fused_moe/cutlass_backend/cutlass_fused_moe_kernels.cuh"
_SILU = "GLUAdaptor<cutlass::epilogue::thread::SiLu>"
_INSTANCES = f"""using bf16 = __nv_bfloat16;
namespace tensorrt_llm::kernels::cutlass_kernels {{
template __global__ void finalizeMoeRoutingKernel<bf16, bf16, bf16, ScaleMode::DEFAULT>(
    bf16 const*, bf16*, bf16 const*, float const*, int const*, int const*, int64_t const, int64_t const, int64_t const,
    int const, int const);
template __global__ void doGatedActivationKernel<bf16, bf16, {_SILU}>(
    bf16*, bf16 const*, int64_t const*, int64_t, int64_t, ActivationParams);
template __global__ void doActivationKernel<bf16, bf16, bf16, {_SILU},
                                            TmaWarpSpecializedGroupedGemmInput::FpXBlockScalingType::NONE>(
    bf16*, bf16 const*, float const*, bf16 const*, bool, int64_t const*, int const*, int, int64_t, float const*, bool,
    TmaWarpSpecializedGroupedGemmInput::ElementSF*, float*, float const*, ActivationParams);
}}
"""
_SWIGLU = Struct("i4xPPP", [3, 0, 0, 0])
"""ActivationParams without alpha, beta and limit; these kernels do not read which activation it is."""


@lru_cache(maxsize=1)
def experts() -> ptx.Module:
    """Those instances."""
    return ptx.load(toolchain.tensorrt_llm(_EXPERTS, _INSTANCES))


@lru_cache(maxsize=1)
def routing() -> ptx.Module:
    """noAuxTcKernels.cu."""
    return ptx.load(toolchain.tensorrt_llm("fused_moe/noAuxTcKernels.cu", ""))


def _weighted_rows(tokens: int, slots: int, hidden: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows [tokens, slots, hidden] in bf16 and scores in fp32 that cancel two by two: what is left is roundings."""
    g = torch.Generator().manual_seed(hidden + slots)
    half = (
        torch.randn(tokens, slots // 2, hidden, generator=g) * 2.0 ** torch.randint(-6, 7, (1, 1, hidden), generator=g)
    ).to(BF16)
    scores = torch.rand(tokens, slots // 2, generator=g)
    order = torch.randperm(slots, generator=g)
    rows = torch.cat((half, -half), dim=1)[:, order].contiguous()
    rows[:, :, ::64] = -0.0
    return rows, torch.cat((scores, scores), dim=1)[:, order].contiguous()


def finalize(tokens: int, slots: int, hidden: int) -> Compared:
    """`finalizeMoeRoutingKernelLauncher`: a block of 256 threads for a token, 8 numbers a thread."""
    count, at = 4 * slots, plan_values("trtllm", "qwen3_moe", "combine")
    rows, scores = _weighted_rows(tokens, slots, hidden)
    g = torch.Generator().manual_seed(tokens)
    ids = torch.rand(tokens, count, generator=g).argsort(-1)[:, :slots].contiguous()
    # Rows lie sorted by expert; where the row of slot k and token t lies stands at k * tokens + t.
    places = torch.empty(tokens * slots, dtype=torch.int32)
    places[ids.T.reshape(-1).argsort(stable=True)] = torch.arange(tokens * slots, dtype=torch.int32)
    permuted = torch.empty(tokens * slots, hidden, dtype=BF16)
    permuted[places.long()] = rows.transpose(0, 1).reshape(-1, hidden)
    y = torch.zeros(tokens, hidden, dtype=BF16)
    args: list[Argument] = [permuted, y, 0, scores, places, ids.int(), hidden, hidden, slots, count, 0]
    launch = timed(lambda: experts().launch("finalizeMoeRoutingKernel", tokens, 256, args))

    def node(values: Mapping[str, Any]) -> list[torch.Tensor]:
        p = {"scale": 1.0, "experts": count, "top_k": slots}
        return [combine(rows[None], ids[None], scores[None], w={}, p=p, at={**values, "scaling": "weights"})[0]]

    # An order with fma has no rounded products.
    beside = {"weighted": {"order": "sequential"}}
    return compare(
        "TensorRT-LLM finalizeMoeRoutingKernel", f"{tokens} x {slots} x {hidden}", launch, [(y, node(at)[0])],
        against="`combine`", claims=[Claim("combine", {**at, "score_site": "combine"}, node, beside)],
        control=node({**at, "order": "sequential"})[0],
    )  # fmt: skip


def activation(tokens: int, width: int, *, gated: bool) -> Compared:
    """`doActivation`, behind a GEMM of Hopper's, or `doGatedActivation`: up lies ahead of gate, 8 numbers a thread."""
    x, y = gates(tokens, width), torch.zeros(tokens, width, dtype=BF16)
    gate, up = x.chunk(2, dim=-1)
    swapped, first = torch.cat((up, gate), dim=-1).contiguous(), torch.tensor([0, tokens])
    base = plan_values("trtllm", "qwen3_moe", "experts")
    at = {"activation": base["activation"], "output": base["product"], "logistic": base["logistic"]}
    args: list[Argument] = [y, swapped, first, width, 1, _SWIGLU]
    name, threads = "doGatedActivationKernelI13__nv_bfloat16", 256
    if not gated:
        args = [y, swapped, 0, 0, 0, first, 0, 1, width, 0, 0, 0, 0, 0, _SWIGLU]
        name, threads = "doActivationKernelI13__nv_bfloat16", min(256, -(-width // 8 // 32) * 32)
    launch = timed(lambda: experts().launch(name, tokens, threads, args))
    return compare(
        f"TensorRT-LLM {'doGatedActivationKernel' if gated else 'doActivationKernel'} (SiLu)", f"{tokens} x {width}",
        launch, [(y, by_node(x, at))], against="`swiglu` within `experts`", claims=claims(x, at)[1:],
        control=by_node(x, {**at, "activation": BF16}),
    )  # fmt: skip


def no_aux_tc(case: Case) -> Compared:
    """`invokeNoAuxTc` of logits and weights in fp32."""
    at = plan_values("trtllm", "deepseek_v3", "router")
    weights, ids = torch.zeros(case.tokens, case.k), torch.zeros(case.tokens, case.k, dtype=torch.int32)
    grouped = case.groups > 1
    size = 256 if grouped else 128 if case.experts <= 128 else 384
    args: list[Argument] = [
        case.logits.to(FP32), weights, ids, case.bias, case.tokens, case.groups, case.top_groups, case.k, case.experts,
        case.experts // case.groups, case.scale, 0,
    ]  # fmt: skip
    name = f"deepseek_v3_topk_kernelIfffiLi{size}ELb{int(grouped)}E"
    launch = timed(lambda: routing().launch(name, case.tokens, size, args))
    expected_ids, expected = case.by_node(at, "sigmoid")
    _, control = case.by_node({**at, "math": "cuda_fast"}, "sigmoid")
    return compare(
        "TensorRT-LLM deepseek_v3_topk_kernel", case.shape, launch, [(weights, expected), (ids, expected_ids)],
        against="`router`", claims=[case.claim(at, "sigmoid")], control=control,
    )  # fmt: skip
