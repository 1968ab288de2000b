"""What the nine integers of cuBLASLt's heuristic say about the order in which a GEMM adds up. Importing this needs no
torch.

Which numbers stand for what: facebookexperimental/triton db4666f (bitequiv, cublas_match and its fixtures); algorithm
66, and 23 and 24 with schemes 2 and 4, held to whole GEMMs of an H200.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final

from moeparity.numerics.tensor_core.cuda_core_plans import HELD, CudaCorePlan, plan_on_cuda_cores
from moeparity.numerics.tensor_core.gemm_orders import GRAIN

NVJET: Final = 66
"""The algorithm of aligned shapes on Hopper and Blackwell."""
CUTLASS: Final = (12, 21, 23, 24)
"""Algorithms of shapes that are not aligned."""
FIELDS: Final = (
    "algo_id", "tile_id", "split_k", "reduction_scheme", "cta_swizzling", "custom_option", "stages_id",
    "inner_shape_id", "cluster_shape_id",
)  # fmt: skip
"""cublasLtMatmulAlgoConfigAttributes_t 0 to 8."""
KNOWN: Final = {"sm_90": ((13, 1),), "sm_100": ((12, 8), (13, 1)), "sm_103": ((13, 1),)}
"""By architecture, the versions of cuBLASLt whose numbers are known."""

HOPPER: Final = "sm_90"
_HELD = (NVJET, 23, 24)
_NVJET_STAGES = 35
_UNALIGNED_GRAIN = 8
_IN_OUTPUT, _IN_FP32, _ROUNDED = (0, 1), 2, 4
"""cublasLtReductionScheme_t: a running total in the output's dtype; fp32 parts added up; parts rounded to the output's
dtype, added up in fp32.
"""


class PlanError(ValueError):
    """A GEMM's order is not known from the plans at hand: which, why, and what to do."""


@dataclass(frozen=True, slots=True)
class GemmPlan:
    """How cuBLASLt adds up K: in `splits` parts, merged by a reduction `scheme`.

    step: 0 for one chain in each part. Else the accumulator is rounded after each `step` of K, and what is left over
    by blocks of `block` comes first.
    """

    splits: int
    scheme: int = _IN_FP32
    step: int = 0
    block: int = 0

    def __str__(self) -> str:
        return f"{self.splits}/{self.scheme}/{self.step}/{self.block}" if self.step else str(self.splits)

    @property
    def keeps_output(self) -> bool:
        """Whether the running total is rounded to the output's dtype after each part."""
        return self.scheme in _IN_OUTPUT

    @property
    def rounds_parts(self) -> bool:
        """Whether each part is rounded to the output's dtype before the parts are added up."""
        return self.scheme == _ROUNDED

    def parts(self, k: int) -> list[slice]:
        """The parts of K, whole multiples of a grain; fewer than `splits` where these use K up early."""
        grain = GRAIN if not self.step or k % GRAIN == 0 else _UNALIGNED_GRAIN
        size = ceil(ceil(k / grain) / self.splits) * grain
        return [slice(start, min(start + size, k)) for start in range(0, k, size)]

    def steps(self, k: int) -> Iterator[slice]:
        """The steps of a part of length k after which the accumulator is rounded. Only where there are such."""
        rest = k % self.block
        starts = [*range(0, rest, self.step), *range(rest, k, self.step)]
        return (slice(start, stop) for start, stop in zip(starts, [*starts[1:], k], strict=True))


def plan_of(numbers: Sequence[int], k: int) -> GemmPlan | None:
    """The plan that the nine integers of `FIELDS` stand for in a 16-bit GEMM over K; None where that is not known."""
    of = dict(zip(FIELDS, numbers, strict=True))
    algorithm, splits, scheme, stages = (of[name] for name in ("algo_id", "split_k", "reduction_scheme", "stages_id"))
    if splits < 1 or scheme not in (*_IN_OUTPUT, _IN_FP32, _ROUNDED):
        return None
    if algorithm == NVJET and stages == _NVJET_STAGES:
        return _of_nvjet(splits, scheme, k)
    if algorithm in CUTLASS and stages in _BLOCKS and not of["custom_option"]:
        return GemmPlan(splits, _IN_FP32 if splits == 1 else scheme, *_BLOCKS[stages])
    return None


def is_held(numbers: Sequence[int]) -> bool:
    """Whether whole GEMMs that an H200 planned by these numbers were held to what it computed (tests/recorded/h200)."""
    of = dict(zip(FIELDS, numbers, strict=True))
    if (of["algo_id"], of["custom_option"]) in HELD:
        return of["split_k"] == 1
    return of["algo_id"] in _HELD and (of["split_k"] == 1 or of["reduction_scheme"] in (_IN_FP32, _ROUNDED))


def plan_for(numbers: Sequence[int], shape: tuple[int, int, int], architecture: str) -> GemmPlan | CudaCorePlan | None:
    """As `plan_of`, of a GEMM of `shape` M, N, K; on Hopper also those on CUDA cores."""
    rows, n, k = shape
    of_cores = plan_on_cuda_cores(dict(zip(FIELDS, numbers, strict=True)), n, rows) if architecture == HOPPER else None
    return plan_of(numbers, k) or of_cores


def _of_nvjet(splits: int, scheme: int, k: int) -> GemmPlan | None:
    """It adds fp32 parts up, whatever the scheme's number without splits; with a single part of several it is not
    known what it does.
    """
    plan = GemmPlan(splits)
    fits = splits == 1 or (scheme == _IN_FP32 and len(plan.parts(k)) > 1)
    return plan if fits else None


_BLOCKS = {stages: (16, 16 << (stages - 1) // 6) for stages in range(7, 21)} | {0: (8, 32), 25: (16, 32)}
"""By the number of CUTLASS's stages: a step and a block of K."""
