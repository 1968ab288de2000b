"""All-reduces that inference engines bring along: TensorRT-LLM and FlashInfer, vLLM, SGLang, torch symm_mem.

Sources imitated: flashinfer fb28d7242b, TensorRT-LLM b35ac1b, sglang 0.5.23, vLLM and PyTorch of 2025-26; each
declaration names the file. vLLM's two kernels and FlashInfer's one-shot and two-shot ones, with either accumulator,
were run as PTX over simulated ranks (docs/ptx.md); this project has not run the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from moeparity.numerics.collectives.declaration import Collective, Evidence
from moeparity.numerics.dtypes import CHECKPOINT_NAMES
from moeparity.numerics.order_map import (
    ASCENDING,
    UNBOUNDED,
    EveryPart,
    Message,
    OrderMap,
    Part,
    Rotation,
    Selection,
    When,
    Whole,
    chain,
)
from moeparity.numerics.orders import AnyTree

PACK = 16
_KIB, _MIB = 1 << 10, 1 << 20


@dataclass(frozen=True, slots=True)
class Packs16:
    """One run of 16-byte packs for each rank; the last rank takes the remainder."""

    def __str__(self) -> str:
        return "packs16"

    def parts(self, message: Message) -> tuple[Part, ...]:
        """One part per rank, owned by it; with fewer packs than ranks the last rank has all."""
        lanes, ranks = PACK // message.itemsize, message.ranks
        share = message.elements // lanes // ranks * lanes
        parts = [Part(rank * share, (rank + 1) * share, rank) for rank in range(ranks - 1) if share]
        return (*parts, Part((ranks - 1) * share, message.elements, ranks - 1))


def groups_of_eight(ranks: int) -> AnyTree:
    """Ranks in ascending order; with more than 8, the sums of ranks 0 to 7 and of the others are added."""
    return chain(chain(range(first, min(first + 8, ranks))) for first in range(0, ranks, 8))


def two_lanes(ranks: int) -> AnyTree:
    """The sum of even ranks plus the sum of odd ranks."""
    return chain([chain(range(0, ranks, 2)), chain(range(1, ranks, 2))])


def _collective(
    name: str,
    order_map: OrderMap,
    source: str,
    worlds: tuple[int, ...],
    dtypes: tuple[str, ...] = CHECKPOINT_NAMES,
) -> Collective:
    return Collective(name, order_map, Evidence("read", source), worlds=worlds, dtypes=dtypes, granule=PACK)


# TensorRT-LLM and FlashInfer. The Lamport kernels mark an empty slot by -0, so a -0 arrives as +0.
_FUSION = "flashinfer fb28d7242b: include/flashinfer/comm/trtllm_allreduce_fusion.cuh"
_TRTLLM = "TensorRT-LLM b35ac1b: cpp/tensorrt_llm/kernels/communicationKernels/allReduceFusionKernels.cu"
_MNNVL = "flashinfer fb28d7242b: include/flashinfer/comm/trtllm_mnnvl_allreduce.cuh"
_CUTEDSL = "flashinfer fb28d7242b: mnnvl_cutedsl, tests/comm/test_mnnvl_cutedsl_numerical_contract.py"
_FUSED_WORLDS = (2, 4, 8, 16)


def lamport(acc: Literal["io", "fp32"]) -> tuple[Collective, ...]:
    """One-shot and two-shot: every rank adds the ranks in ascending order, each addition rounded (default) or
    `fp32_acc`.
    """
    suffix = "_fp32" if acc == "fp32" else ""
    one_shot = OrderMap(Whole(), ASCENDING, acc, inputs="negative_to_positive")
    words = OrderMap(Whole(), ASCENDING, acc, inputs="negative_words_to_positive")
    two_shot = OrderMap(Whole(), ASCENDING, acc)
    return (
        _collective(f"flashinfer.one_shot{suffix}", one_shot, f"{_FUSION} oneshot_lamport", _FUSED_WORLDS),
        _collective(f"flashinfer.two_shot{suffix}", two_shot, f"{_FUSION} twoshot_sync", _FUSED_WORLDS),
        _collective(f"trtllm.one_shot{suffix}", words, _TRTLLM, _FUSED_WORLDS),
        _collective(f"trtllm.two_shot{suffix}", two_shot, _TRTLLM, _FUSED_WORLDS),
    )


TRTLLM_TABLE = Selection(
    "trtllm.all_reduce", ((When(tokens_up_to=128), "trtllm.one_shot"), (When(), "trtllm.two_shot"))
)

MNNVL_ONE_SHOT = _collective(
    "flashinfer.mnnvl_one_shot",
    OrderMap(Whole(), EveryPart("groups_of_eight", groups_of_eight), "fp32", from_zero=True),
    f"{_MNNVL} one-shot",
    tuple(range(2, 17)),
)
MNNVL_TWO_SHOT = _collective(
    "flashinfer.mnnvl_two_shot",
    OrderMap(Whole(), ASCENDING, "fp32", from_zero=True),
    f"{_MNNVL} two-shot",
    tuple(range(2, 17)),
)
MNNVL_TABLE = Selection(
    "flashinfer.mnnvl", ((When(total_bytes_up_to=_MIB), MNNVL_ONE_SHOT.name), (When(), MNNVL_TWO_SHOT.name))
)

# The sum is handed on in fp32, and is first rounded by the residual addition.
CUTEDSL_TWO_LANES = _collective(
    "flashinfer.cutedsl_ll_two_lanes",
    OrderMap(Whole(), EveryPart("two_lanes", two_lanes), "fp32", output="fp32", from_zero=True),
    f"{_CUTEDSL} (LL, rank_lanes 2)",
    (8, 16),
    ("bf16",),
)
CUTEDSL_ONE_LANE = _collective(
    "flashinfer.cutedsl_ll_one_lane",
    OrderMap(Whole(), ASCENDING, "fp32", output="fp32", from_zero=True),
    f"{_CUTEDSL} (LL, rank_lanes 1)",
    (8, 16),
    ("bf16",),
)
CUTEDSL_BT = _collective(
    "flashinfer.cutedsl_bt",
    OrderMap(Whole(), ASCENDING, "fp32", output="fp32"),
    f"{_CUTEDSL} (BT)",
    (8, 16),
    ("bf16",),
)

# vLLM's own kernels; two stages give another order than one.
_VLLM = "vLLM csrc/custom_all_reduce.cuh at 036bb68558: packed_reduce"
VLLM_ONE_STAGE = _collective(
    "vllm.one_stage", OrderMap(Whole(), ASCENDING, "fp32"), f"{_VLLM}, cross_device_reduce_1stage", (2, 4, 6, 8)
)
VLLM_TWO_STAGE = _collective(
    "vllm.two_stage",
    OrderMap(Packs16(), Rotation(start=0, step=1), "fp32"),
    f"{_VLLM}, cross_device_reduce_2stage",
    (2, 4, 6, 8),
)
# Over shared memory each rank adds its own message first, then those of the ranks behind it, going round. Over two
# ranks that is one sum; over more every rank has other bits, which is not imitated.
VLLM_CPU_SHM = Collective(
    "vllm.cpu_shm",
    OrderMap(Whole(), ASCENDING, "fp32"),
    Evidence("read", "vLLM 0.33.0, csrc/cpu/shm.cpp all_reduce_sum_impl"),
    worlds=(2,),
)
# SGLang's custom all-reduce: three kernels with one order, from the first rank on. Not imitated: push turns the first
# of a pair of +0 into -0, and with 4 ranks or more the switch adds (multimem) above some size.
_SGLANG = "sglang 0.5.23, kernels/jit/csrc/distributed/custom_all_reduce.cuh"
SGLANG = tuple(
    _collective(
        f"sglang.{kernel}",
        OrderMap(Whole(), ASCENDING, "fp32"),
        f"{_SGLANG} all_reduce_{function}_kernel, sgl_kernel/vec.cuh reduce_vec",
        (2, 4, 8),
    )
    for kernel, function in (
        ("push_one_shot", "1shot_push"),
        ("pull_one_shot", "1shot_pull"),
        ("pull_two_shot", "2shot_pull"),
    )
)

# torch's symmetric memory kernels: a bf16 register, which starts from 0 if ranks are not unrolled.
_SYMM_MEM = (
    "pytorch of 2025-26 (commit not recorded) torch/csrc/distributed/c10d/symm_mem/CUDASymmetricMemory-inl.h "
    "load_and_reduce"
)
_UNROLLED, _LOOPED = (2, 4, 8), (3, 5, 6, 7)
SYMM_MEM = tuple(
    _collective(
        f"torch.symm_mem_{shot}{suffix}",
        OrderMap(Whole(), ASCENDING, "io", from_zero=worlds is _LOOPED),
        f"{_SYMM_MEM}, {shot}_all_reduce",
        worlds,
        ("bf16",),
    )
    for shot in ("one_shot", "two_shot")
    for suffix, worlds in (("", _UNROLLED), ("_looped", _LOOPED))
)
MULTIMEM = Collective(
    "torch.symm_mem_multimem",
    OrderMap(Whole(), ASCENDING, "fp32"),
    Evidence("opaque", "multimem adds in fp32, in an order that is not published: run as ranks ascending"),
    dtypes=("bf16",),
    granule=PACK,
)
VLLM_SYMM_MEM_TABLE = Selection(
    "vllm.symm_mem",
    (
        (When(ranks=(4, 6, 8), arch=("sm90",)), MULTIMEM.name),
        (When(ranks=(6, 8), arch=("sm100",)), MULTIMEM.name),
        (When(ranks=_UNROLLED), "torch.symm_mem_two_shot"),
        (When(ranks=_LOOPED), "torch.symm_mem_two_shot_looped"),
    ),
)

# vLLM 0.33.0 on SM90, one node, full NVLink, by the bytes of one call: custom_all_reduce.py:510 with the limits of
# all_reduce_utils.py:22-31, as with symmetric memory, the default; above them torch's symmetric memory up to
# all_reduce_utils.py:53-59. NCCL adds larger messages by a rule of its own, so no row holds.
_CUSTOM = (
    (When(ranks=(2,), bytes_below=8 * _MIB), VLLM_ONE_STAGE.name),
    (When(ranks=(4,), bytes_below=512 * _KIB), VLLM_ONE_STAGE.name),
    (When(ranks=(6, 8), bytes_below=256 * _KIB), VLLM_ONE_STAGE.name),
    (When(ranks=(4,), bytes_below=8 * _MIB), VLLM_TWO_STAGE.name),
    (When(ranks=(6,), bytes_below=512 * _KIB), VLLM_TWO_STAGE.name),
    (When(ranks=(2,), bytes_below=64 * _MIB + 1), "torch.symm_mem_two_shot"),
    (When(ranks=(4,), bytes_below=32 * _MIB + 1), MULTIMEM.name),
    (When(ranks=(6, 8), bytes_below=64 * _MIB + 1), MULTIMEM.name),
)
VLLM_TABLE = Selection("vllm.custom", _CUSTOM)
# vLLM 0.8.5, where NVLink connects all ranks: csrc/custom_all_reduce.cuh:557-574, for messages below 8 MiB
# (custom_all_reduce.py:225); NCCL adds larger ones.
VLLM_0_8_TABLE = Selection(
    "vllm.custom_0_8",
    (
        (When(ranks=(2,), bytes_below=8 * _MIB), VLLM_ONE_STAGE.name),
        (When(ranks=(4,), bytes_below=512 * _KIB), VLLM_ONE_STAGE.name),
        (When(ranks=(6, 8), bytes_below=256 * _KIB), VLLM_ONE_STAGE.name),
        (When(ranks=(4, 6, 8), bytes_below=8 * _MIB), VLLM_TWO_STAGE.name),
    ),
)
_MNNVL_LIMITS = ((2, 64 * _MIB), (4, 2 * _MIB), (8, _MIB // 2))
"""Ranks, and the bytes up to which FlashInfer's mnnvl is tried first: allreduce_rms_fusion.py:104-109."""
VLLM_SM90_TABLE = Selection(
    "vllm.all_reduce_sm90",
    (
        *(
            (When(ranks=(ranks,), bytes_below=most + 1, total_bytes_up_to=total), name)
            for ranks, most in _MNNVL_LIMITS
            for total, name in ((_MIB, MNNVL_ONE_SHOT.name), (UNBOUNDED, MNNVL_TWO_SHOT.name))
        ),
        *_CUSTOM,
    ),
)
# With FlashInfer's trtllm backend, fused with a norm, where vLLM sets fp32_acc; for 2 ranks two-shot above 32 MiB
# (allreduce_rms_fusion.py:133-137).
VLLM_TRTLLM_SM90_TABLE = Selection(
    "vllm.all_reduce_trtllm_sm90",
    (
        (When(ranks=(2,), bytes_below=32 * _MIB + 1), "flashinfer.one_shot_fp32"),
        (When(ranks=(2,), bytes_below=64 * _MIB + 1), "flashinfer.two_shot_fp32"),
        (When(ranks=(4,), bytes_below=2 * _MIB + 1), "flashinfer.one_shot_fp32"),
        (When(ranks=(8,), bytes_below=_MIB // 2 + 1), "flashinfer.one_shot_fp32"),
        *_CUSTOM,
    ),
)

# Outside norms vLLM sets neither fp32_acc nor use_oneshot (flashinfer_all_reduce.py:521-537): FlashInfer 0.7.2 adds in
# the dtype of the message, and takes one-shot up to 512, 64 and 42 MiB of message x 2 x ranks on 2, 4 and 8 ranks
# (comm/trtllm_ar.py:712-725). vLLM's own limits lie below that.
VLLM_TRTLLM_UNFUSED_SM90_TABLE = Selection(
    "vllm.all_reduce_trtllm_unfused_sm90",
    (*((When(ranks=(ranks,), bytes_below=most + 1), "flashinfer.one_shot") for ranks, most in _MNNVL_LIMITS), *_CUSTOM),
)

QUICK_REDUCE = _collective(
    "vllm.quick_reduce_fp",
    OrderMap(Whole(), ASCENDING, "io", from_zero=True),
    "vLLM of 2025-26 (commit not recorded) csrc/quickreduce/quick_reduce_impl.cuh AllReduceTwoshot, codec FP",
    (2, 4, 8),
    ("fp16",),
)

ALL = (
    *lamport("io"),
    *lamport("fp32"),
    MNNVL_ONE_SHOT,
    MNNVL_TWO_SHOT,
    CUTEDSL_TWO_LANES,
    CUTEDSL_ONE_LANE,
    CUTEDSL_BT,
    VLLM_ONE_STAGE,
    VLLM_TWO_STAGE,
    VLLM_CPU_SHM,
    *SGLANG,
    *SYMM_MEM,
    MULTIMEM,
    QUICK_REDUCE,
)
TABLES = (
    TRTLLM_TABLE,
    MNNVL_TABLE,
    VLLM_TABLE,
    VLLM_0_8_TABLE,
    VLLM_SM90_TABLE,
    VLLM_TRTLLM_SM90_TABLE,
    VLLM_TRTLLM_UNFUSED_SM90_TABLE,
    VLLM_SYMM_MEM_TABLE,
)
