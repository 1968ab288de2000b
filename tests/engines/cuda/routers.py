"""Routers: vLLM's top-k gates and grouped top-k, TensorRT-LLM's noaux_tc in FlashInfer, against the node `router`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch

from moeparity import ptx
from moeparity.ops.kernels.router import router
from moeparity.ptx.launch_arguments import Argument
from tests.engines.cuda import toolchain
from tests.engines.cuda.claims import Claim
from tests.engines.cuda.compared import BF16, Compared, compare, plan_values, timed

SOFTMAX, SIGMOID = 0, 1


@lru_cache(maxsize=4)
def module(name: str) -> ptx.Module:
    """One of vLLM's files below csrc/moe."""
    return ptx.load(toolchain.vllm(f"moe/{name}"))


@dataclass(frozen=True, kw_only=True)
class Case:
    """Logits in bf16 of a seed, some of them equal, with a bias in fp32 where there is one."""

    tokens: int
    experts: int
    k: int
    groups: int = 1
    top_groups: int = 1
    biased: bool = False
    scale: float = 1.0

    @property
    def logits(self) -> torch.Tensor:
        """[tokens, experts]."""
        g = torch.Generator().manual_seed(self.tokens * 1000 + self.experts)
        return (2 * torch.randn(self.tokens, self.experts, generator=g)).to(BF16)

    @property
    def bias(self) -> torch.Tensor:
        """[experts]."""
        g = torch.Generator().manual_seed(self.experts)
        return 0.05 * torch.randn(self.experts, generator=g) * self.biased

    @property
    def shape(self) -> str:
        """As the table names it."""
        groups = f", {self.top_groups} of {self.groups} groups" if self.groups > 1 else ""
        scale = f", scale {self.scale}" if self.scale != 1 else ""
        return f"{self.tokens} x {self.experts}, top-{self.k}{groups}{scale}"

    def stated(self, profile: str, model: str) -> Mapping[str, Any]:
        """What a profile states of the router of a model of these sizes, in a step of so many rows."""
        sizes = {
            "experts": self.experts, "top_k": self.k, "groups": self.groups, "top_groups": self.top_groups,
            "group_experts": self.experts // self.groups,
        }  # fmt: skip
        return plan_values(profile, model, "router", rows=self.tokens, sizes=tuple(sizes.items()))

    def by_node(self, at: Mapping[str, Any], score: str) -> tuple[torch.Tensor, torch.Tensor]:
        """ids int32 and weights of the node."""
        p = {
            "top_k": self.k, "score": score, "renormalize": True, "experts": self.experts, "groups": self.groups,
            "top_groups": self.top_groups, "scale": self.scale, "shared": False,
        }  # fmt: skip
        w = {"bias": self.bias} if self.biased else {}
        ids, weights = router(self.logits, w=w, p=p, at=at)
        return ids.int(), weights

    def claim(self, at: Mapping[str, Any], score: str) -> Claim:
        """What equal bits would verify."""
        return Claim("router", at, lambda values: self.by_node(values, score))


def top_k_softmax(case: Case) -> Compared:
    """`topk_softmax`: topkGating where the number of experts has an instance, else moeSoftmax and moeTopK."""
    return _gated(case, SOFTMAX, case.stated("vllm", "qwen3_moe"), "softmax")


_FUSED = {1, 2, 4, 8, 16, 32, 64, 128, 192, 256, 320, 384, 448, 512, 576}
"""Numbers of experts that `topkGatingKernelLauncher` has an instance for, with softmax."""


def _unfused(case: Case, at: Mapping[str, Any], weights: torch.Tensor, ids: torch.Tensor) -> Compared:
    """moeSoftmax, a block of 256 threads a row, and moeTopK, which picks one expert after the other."""
    loaded, scores = module("topk_softmax_kernels.cu"), torch.zeros(case.tokens, case.experts)
    source = torch.zeros_like(ids)
    args: list[Argument] = [case.logits, 0, scores, case.experts]
    begin = timed(lambda: loaded.launch("moeSoftmaxILi256E13__nv_bfloat16", case.tokens, 256, args))
    more: list[Argument] = [scores, 0, weights, ids, source, case.experts, case.k, 0, case.experts, 1, 0, 1.0, 0]
    end = timed(lambda: loaded.launch("moeTopKILi256EiE", case.tokens, 256, more))
    whole = replace(begin, seconds=begin.seconds + end.seconds)
    expected_ids, expected = case.by_node(at, "softmax")
    _, control = case.by_node({**at, "denominator": "sequential"}, "softmax")
    return compare(
        "vLLM moeSoftmax, moeTopK", case.shape, whole, [(weights, expected), (ids, expected_ids)], against="`router`",
        claims=[case.claim(at, "softmax")], control=control,
    )  # fmt: skip


def _gated(case: Case, scoring: int, at: Mapping[str, Any], score: str) -> Compared:
    weights, ids = torch.zeros(case.tokens, case.k), torch.zeros(case.tokens, case.k, dtype=torch.int32)
    source, nothing = torch.zeros(case.tokens, case.k, dtype=torch.int32), 0
    loaded = module("topk_softmax_kernels.cu")
    if case.experts not in _FUSED:
        return _unfused(case, at, weights, ids)
    instance = f"Li{case.experts}ELi4ELi{{}}ELi32Ei13__nv_bfloat16LNS0_11ScoringFuncE{scoring}"
    name = next(n for n in loaded.kernels if any(instance.format(size) in n for size in (16, 4, 2, 8)))
    per_thread = int(name.split("topkGatingILi")[1].split("E")[0])
    rows = 4 * 32 * per_thread // case.experts
    bias: Argument = case.bias if case.biased else nothing
    args: list[Argument] = [
        case.logits, nothing, weights, case.tokens, ids, source, case.k, 0, case.experts, 1, bias, 1.0, nothing,
    ]  # fmt: skip
    launch = timed(lambda: loaded.launch(name, -(-case.tokens // rows), (32, 4), args))
    expected_ids, expected = case.by_node(at, score)
    _, torchs = case.by_node({**at, "math": "torch"}, score)
    return compare(
        f"vLLM topkGating ({score})", case.shape, launch, [(weights, expected), (ids, expected_ids)],
        against="`router`", claims=[case.claim(at, score)], control=torchs,
    )  # fmt: skip


def grouped_top_k(case: Case) -> Compared:
    """`grouped_topk` of several groups of up to 32 experts: grouped_topk_fused_small_expert_count_kernel."""
    at = case.stated("vllm", "deepseek_v3")
    weights, ids = torch.zeros(case.tokens, case.k), torch.zeros(case.tokens, case.k, dtype=torch.int32)
    loaded = module("grouped_topk_kernels.cu")
    name = "grouped_topk_fused_small_expert_count_kernelI13__nv_bfloat16fiLNS0_11ScoringFuncE1ELi256ELb1E"
    args: list[Argument] = [
        case.logits, weights, ids, case.bias, case.tokens, case.groups, case.top_groups, case.k, case.experts,
        case.experts // case.groups, 1, 1.0,
    ]  # fmt: skip
    launch = timed(lambda: loaded.launch(name, case.tokens, 256, args))
    expected_ids, expected = case.by_node(at, "sigmoid")
    _, torchs = case.by_node({**at, "math": "torch"}, "sigmoid")
    return compare(
        "vLLM grouped_topk_fused_small_expert_count_kernel", case.shape, launch,
        [(weights, expected), (ids, expected_ids)], against="`router`",
        claims=[case.claim(at, "sigmoid")], control=torchs,
    )  # fmt: skip


def single_group_top_k(case: Case) -> Compared:
    """`grouped_topk` of one group: a warp for each token, or from 256 experts and up to 1024 tokens on a block."""
    warp = case.experts < 256 or case.tokens > 1024
    at = case.stated("vllm", "glm4_moe")
    tier = next(size for size in (128, 256, 384, 512) if case.experts <= size)
    name = f"single_group_topk_{'warp' if warp else 'block'}_kernelI13__nv_bfloat16fiLNS0_11ScoringFuncE1ELi{tier}ELi8E"
    weights, ids = torch.zeros(case.tokens, case.k), torch.zeros(case.tokens, case.k, dtype=torch.int32)
    loaded = module("grouped_topk_kernels.cu")
    shared: list[Argument] = [case.logits, weights, ids, case.bias]
    sizes: list[Argument] = [*[case.tokens] * warp, case.experts, case.k, 1, 1.0, 0]
    grid = -(-case.tokens // 8) if warp else case.tokens
    launch = timed(lambda: loaded.launch(name, grid, 256, [*shared, *sizes]))
    expected_ids, expected = case.by_node(at, "sigmoid")
    _, control = case.by_node({**at, "renormalize_order": "sequential"}, "sigmoid")
    return compare(
        f"vLLM single_group_topk_{'warp' if warp else 'block'}_kernel", case.shape, launch,
        [(weights, expected), (ids, expected_ids)], against="`router`",
        claims=[case.claim(at, "sigmoid")], control=control,
    )  # fmt: skip


def top_k_sigmoid(case: Case) -> Compared:
    """`topk_sigmoid`: topkGating with 1 / (1 + __expf(-x)), which no profile chooses."""
    at = {
        **plan_values("vllm", "glm4_moe", "router"), "sigmoid": "exp", "math": "cuda_fast", "chosen": "scores",
        "renormalize_order": "sequential", "renormalize_eps": 0.0,
    }  # fmt: skip
    return _gated(case, SIGMOID, at, "sigmoid")


def generic_grouped_top_k(case: Case) -> Compared:
    """`grouped_topk` of groups of more than 32 experts: grouped_topk_fused_kernel, a warp a group."""
    base = plan_values("vllm", "deepseek_v3", "router")
    # A sum that starts from eps; scores and their sums with the bias stay in the logits' dtype.
    at = {
        **base, "scores": BF16, "choice": BF16, "correction": BF16, "renormalize": "scale_over_sum",
        "renormalize_eps_at": "start", "renormalize_eps": 0.0,
    }  # fmt: skip
    weights, ids = torch.zeros(case.tokens, case.k), torch.zeros(case.tokens, case.k, dtype=torch.int32)
    loaded = module("grouped_topk_kernels.cu")
    args: list[Argument] = [
        case.logits, weights, ids, case.bias, case.tokens, case.experts, case.groups, case.top_groups, case.k, 1, 1.0,
    ]  # fmt: skip
    shared = -(-case.groups * 64 // 256) * 256 + case.groups * 128 + 16 + 2 * case.groups
    name = "25grouped_topk_fused_kernelI13__nv_bfloat16fiLNS0_11ScoringFuncE1E"
    launch = timed(lambda: loaded.launch(name, case.tokens, 32 * case.groups, args, shared=shared))
    expected_ids, expected = case.by_node(at, "sigmoid")
    _, control = case.by_node({**at, "renormalize_order": "sequential"}, "sigmoid")
    return compare(
        "vLLM grouped_topk_fused_kernel", case.shape, launch, [(weights, expected), (ids, expected_ids)],
        against="`router`", claims=[case.claim(at, "sigmoid")], control=control,
    )  # fmt: skip


@lru_cache(maxsize=1)
def trtllm() -> ptx.Module:
    """TensorRT-LLM's noAuxTcKernels.cu as FlashInfer has it."""
    return ptx.load(toolchain.flashinfer("fused_moe/noAuxTcKernels.cu", "", "--expt-relaxed-constexpr"))


def no_aux_tc(case: Case) -> Compared:
    """`invokeNoAuxTc`: deepseek_v3_topk_kernel with -use_fast_math; logits and weights in fp32."""
    at = {**plan_values("trtllm", "deepseek_v3", "router"), "math": "cuda_fast"}
    weights, ids = torch.zeros(case.tokens, case.k), torch.zeros(case.tokens, case.k, dtype=torch.int32)
    logits = case.logits.float()
    grouped = case.groups > 1
    size = 256 if grouped else 128 if case.experts <= 128 else 384
    args: list[Argument] = [
        logits, weights, ids, case.bias, case.tokens, case.groups, case.top_groups, case.k, case.experts,
        case.experts // case.groups, case.scale, 0,
    ]  # fmt: skip
    name = f"deepseek_v3_topk_kernelIfffiLi{size}ELb{int(grouped)}E"
    launch = timed(lambda: trtllm().launch(name, case.tokens, size, args))
    expected_ids, expected = case.by_node(at, "sigmoid")
    _, control = case.by_node({**at, "math": "cuda"}, "sigmoid")
    return compare(
        "FlashInfer deepseek_v3_topk_kernel (TensorRT-LLM)", case.shape, launch,
        [(weights, expected), (ids, expected_ids)], against="`router`",
        claims=[case.claim(at, "sigmoid")], control=control,
    )  # fmt: skip
