"""Launch rules by name: in which order kernels add up the squares of an RMSNorm. No torch here.

A kernel's tree follows from its launch: hidden size, number of rows, dtype, number of SMs. torch's own were held to an
H200 (tests/recorded/h200, docs/generated/gpu.md); docs/ptx.md and docs/engines-run.md say which of the others were run
as PTX. Only the order of additions is stated here: the kernels also divide and take roots approximately.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import groupby

from moeparity.numerics.collectives.declaration import Evidence
from moeparity.numerics.orders import Order, parse
from moeparity.ops.norm import fused_launches as fused
from moeparity.ops.norm import launches
from moeparity.ops.norm.launches import Launch


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A kernel's order of squares: `order` gives it as text for a launch, or raises OrderError if it refuses the
    launch.

    rows, sms, ranks: whether the order depends on the number of rows, of SMs, of ranks of the all-reduce.
    """

    name: str
    order: Callable[[Launch], str]
    evidence: Evidence
    rows: bool = False
    sms: bool = False
    ranks: bool = False

    @property
    def says(self) -> str:
        """How the kernel is launched."""
        return str(self.order.__doc__)

    def explain(self, hidden: int, *, rows: Iterable[int] = range(1, 1025), dtype: str = "bf16", ranks: int = 1) -> str:
        """The orders for a hidden size, one line for each run of row counts with the same order."""
        orders = ((n, self.order(Launch(hidden=hidden, rows=n, dtype=dtype, ranks=ranks))) for n in rows)
        lines = []
        for order, run in groupby(orders, key=lambda pair: pair[1]):
            counts = [n for n, _ in run]
            span = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
            lines.append(f"rows {span}  {order}")
        return "\n".join(lines)


def order_of(name: str, launch: Launch) -> Order:
    """The order that `name` means: a rule's at this launch, or an order written out. Raises OrderError."""
    return parse(RULES[name].order(launch)) if name in RULES else parse(name)


TE_SOURCE = "TransformerEngine d0067d0da6, common/normalization/rmsnorm, kernel_traits.h, common/utils.cuh"
WELFORD_SOURCE = (
    "torch 2.13.0, include/ATen/native/SharedReduceOps.h, cuda/block_reduce.cuh; layer_norm_kernel.cu of 2025-26 "
    "(commit not recorded) RowwiseMomentsCUDAKernel"
)
_FLASHINFER = "flashinfer fb28d7242b and 0.7.2.post1"
_CUTEDSL = "flashinfer 0.7.2.post1, norm/kernels, norm/utils.py"
_PRESETS = (
    "flashinfer 0.7.2.post1, comm/mnnvl_cutedsl, {}; that a thread adds its vector in sequence, no fma, is inferred"
)
_PTX = "as in the PTX that Triton 3.8.0 makes of it for sm_90"
_VLLM = "vLLM 0b9c541280, csrc/libtorch_stable/layernorm_kernels.cu"


def _rule(
    name: str,
    order: Callable[[Launch], str],
    source: str,
    *,
    inferred: bool = False,
    rows: bool = False,
    sms: bool = False,
    ranks: bool = False,
) -> Rule:
    evidence = Evidence("inferred" if inferred else "read", source)
    return Rule(name=name, order=order, evidence=evidence, rows=rows, sms=sms, ranks=ranks)


_ALL = (
    _rule("vllm.rms_norm", launches.vllm, f"{_VLLM}, rms_norm", rows=True),
    _rule("vllm.fused_add_rms_norm", launches.vllm_fused_add, f"{_VLLM}, fused_add_rms_norm", rows=True),
    _rule(
        "vllm.batch_invariant",
        launches.vllm_tiles,
        "vLLM 0.33.0, model_executor/determinism/batch_invariant.py, and sglang 0.5.23, srt/batch_invariant_ops, "
        f"_rms_norm_kernel; within a tile {_PTX}, of 16-bit rows; run as PTX (docs/engines-run.md)",
        inferred=True,
    ),
    _rule(
        "sglang.batch_invariant_mean",
        launches.sglang_mean,
        "sglang 0.5.23, srt/batch_invariant_ops/batch_invariant_ops.py mean_kernel, of squares in fp32; within a tile "
        f"{_PTX}; run as PTX (docs/engines-run.md)",
        inferred=True,
    ),
    _rule(
        "flashinfer.rms_norm",
        launches.flashinfer,
        f"{_FLASHINFER}, include/flashinfer/norm.cuh; fma as in the PTX that nvcc 13.5.37 makes of it for sm_90, where "
        "it changes nothing: squares of 16-bit numbers are exact",
    ),
    _rule("flashinfer.cutedsl_rms_norm", launches.cutedsl, _CUTEDSL),
    _rule(
        "flashinfer.cutedsl_qk_rms_norm_sm100",
        launches.cutedsl_qk,
        f"{_CUTEDSL}; QKRMSNormKernel; that a thread adds in sequence, no fma, is inferred",
    ),
    _rule(
        "trtllm.rms_norm",
        launches.trtllm,
        "TensorRT-LLM of 2025-26 (commit not recorded) cpp/tensorrt_llm/kernels/rmsnormKernels.cu generalRmsNorm",
    ),
    _rule(
        "trtllm.all_reduce_rms_norm",
        fused.fused_all_reduce,
        f"{_FLASHINFER}, include/flashinfer/comm/trtllm_allreduce_fusion.cuh, one-shot; TensorRT-LLM b35ac1b is alike",
        rows=True,
        sms=True,
    ),
    _rule(
        "trtllm.two_shot_rms_norm",
        fused.two_shot,
        "flashinfer 0.7.2.post1, include/flashinfer/comm/trtllm_allreduce_fusion.cuh, twoshot_sync",
        rows=True,
        sms=True,
        ranks=True,
    ),
    _rule(
        "trtllm.moe_all_reduce_rms_norm",
        fused.moe_all_reduce,
        f"{_FLASHINFER}, include/flashinfer/comm/trtllm_moe_allreduce_fusion.cuh",
    ),
    _rule(
        "flashinfer.mnnvl_rms_norm",
        fused.mnnvl,
        "flashinfer 0.7.2.post1, include/flashinfer/comm/trtllm_mnnvl_allreduce.cuh, adjustGridConfig",
        rows=True,
        sms=True,
    ),
    _rule(
        "flashinfer.cutedsl_ll_rms_norm",
        fused.cutedsl_ll,
        _PRESETS.format("kernel_ll, all-reduce presets"),
        ranks=True,
    ),
    _rule(
        "flashinfer.cutedsl_ll_moe_rms_norm",
        fused.cutedsl_ll_moe,
        _PRESETS.format("kernel_ll, finalize presets"),
        ranks=True,
    ),
    _rule(
        "flashinfer.cutedsl_bt_rms_norm",
        fused.cutedsl_bt,
        _PRESETS.format("kernel_bt, all-reduce presets"),
        rows=True,
        ranks=True,
    ),
    _rule(
        "flashinfer.cutedsl_bt_moe_rms_norm",
        fused.cutedsl_bt_moe,
        _PRESETS.format("kernel_bt, finalize presets"),
        rows=True,
        ranks=True,
    ),
    _rule("torch.cuda_mean", launches.cuda_mean, "torch 2.13.0, include/ATen/native/cuda/Reduce.cuh", rows=True),
    _rule(
        "torch.cuda_mean_2_9",
        launches.cuda_mean_2_9,
        "torch 2.13.0, include/ATen/native/cuda/Reduce.cuh, the ROCm branch; pytorch/pytorch#164790",
        rows=True,
    ),
    _rule(
        "torch.cuda_rms_norm",
        launches.cuda_rms_norm,
        "pytorch of 2025-26 (commit not recorded) aten/src/ATen/native/cuda/layer_norm_kernel.cu",
    ),
    _rule(
        "liger.rms_norm",
        launches.liger,
        "Liger-Kernel ead96b618e and 0.8.5, ops/rms_norm.py, ops/utils.py; Triton's layout is inferred",
        inferred=True,
    ),
    _rule(
        "quack.rms_norm",
        launches.quack,
        "quack 0.6.5, rmsnorm_config.py, rmsnorm.py, reduce.py; that a thread adds in sequence without fma is inferred",
    ),
    _rule(
        "sglang.rms_norm",
        launches.sglang,
        "SGLang 223da94c27, jit_kernel csrc/elementwise/rmsnorm.cuh, include/sgl_kernel/impl/norm.cuh; its fma, and "
        "that the warps' sums are folded as in its cta::reduce_max (09e82c67ec), are inferred",
        inferred=True,
    ),
    _rule(
        "sglang.qk_rms_norm",
        launches.sglang_qk,
        "sglang 0.5.23, kernels/jit/csrc/elementwise/qknorm.cuh, include/sgl_kernel/impl/norm.cuh, other sizes by "
        "srt/models/utils.py apply_qk_norm; contraction into fma is inferred",
    ),
    _rule("apex.rms_norm", launches.apex, "apex 6424da3b4f, csrc/layer_norm_cuda_kernel.cu cuApplyRMSNorm"),
)
RULES = {rule.name: rule for rule in _ALL}
"""Every launch rule by name."""
BY_ROWS = tuple(rule.name for rule in _ALL if rule.rows)
"""Rules whose tree depends on the number of rows."""
BY_SMS = tuple(rule.name for rule in _ALL if rule.sms)
"""Rules whose tree depends on the number of SMs."""
BY_RANKS = tuple(rule.name for rule in _ALL if rule.ranks)
"""Rules whose tree depends on the number of ranks."""
