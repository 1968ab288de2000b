"""A GEMM as a plan of cuBLASLt adds it up, on tensor cores or CUDA cores."""

from __future__ import annotations

from functools import reduce

import torch

from moeparity.numerics.rounding import rounded
from moeparity.numerics.tensor_core.cuda_core_plans import CudaCorePlan
from moeparity.numerics.tensor_core.cuda_core_product import cuda_core_product
from moeparity.numerics.tensor_core.gemm_plans import GemmPlan
from moeparity.numerics.tensor_core.instructions import Instruction
from moeparity.numerics.tensor_core.product import multiply_add


def planned_product(
    instruction: Instruction, x: torch.Tensor, weight: torch.Tensor, plan: GemmPlan | CudaCorePlan, output: torch.dtype
) -> torch.Tensor:
    """x [M, K], weight [N, K] -> fp32 [M, N], not rounded to `output` but where the plan rounds on the way."""
    if isinstance(plan, CudaCorePlan):
        return cuda_core_product(x, weight, plan)
    parts = (_part(instruction, x[:, cut], weight[:, cut], plan) for cut in plan.parts(x.shape[-1]))
    if plan.splits == 1:
        return next(parts)
    if plan.keeps_output:
        # The first part is rounded too: it is what the next one finds in memory.
        return reduce(lambda total, part: rounded(total + part, output).float(), parts, torch.zeros(()))
    if plan.rounds_parts:
        parts = (rounded(part, output).float() for part in parts)
    return reduce(torch.add, parts)


def _part(instruction: Instruction, x: torch.Tensor, weight: torch.Tensor, plan: GemmPlan) -> torch.Tensor:
    """One chain over the part's K; steps shorter than the instruction's are filled up with zeros."""
    k = x.shape[-1]
    if plan.step:
        columns: list[int] = []
        for step in plan.steps(k):
            columns += [*range(step.start, step.stop), *[k] * (-(step.stop - step.start) % instruction.span)]
        x, weight = (torch.nn.functional.pad(of, (0, 1))[:, columns] for of in (x, weight))
    return multiply_add(instruction, x, weight.t())
