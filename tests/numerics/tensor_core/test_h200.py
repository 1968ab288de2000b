"""Whole GEMMs of an H200, by cuBLAS, as one formula and the library's own plan give them (tests/recorded/h200)."""

from __future__ import annotations

import hashlib
import math

import pytest
import torch

from benchmarks.gpu.hardware import ROWS, SHAPES, integers
from moeparity.numerics.tensor_core.instructions import Instruction, instruction
from moeparity.numerics.tensor_core.product import multiply_add
from tests.recorded.files import count_of_others, read

NVJET = 66
"""The number of cuBLASLt's algorithm for aligned shapes on Hopper."""
GRAIN = 64
"""Elements of K in whole multiples of which it splits."""
CORNER = 16, 64
"""Rows and columns that were recorded."""
NEIGHBOURS = 2
"""Rows that are given to other formulas too."""


def chained(of: Instruction, x: torch.Tensor, weight: torch.Tensor, slice_of_k: int) -> torch.Tensor:
    """x [M, K], weight [N, K] -> fp32 [M, N]: a chain for each slice of K, and their sum in ascending order."""
    total = None
    for start in range(0, x.shape[1], slice_of_k):
        part = multiply_add(of, x[:, start : start + slice_of_k], weight[:, start : start + slice_of_k].T)
        total = part if total is None else total + part
    assert total is not None
    return total


def split(k: int, count: int) -> int:
    """How long nvjet's slices are where K is split."""
    return math.ceil(math.ceil(k / GRAIN) / count) * GRAIN


@pytest.mark.parametrize("number", range(len(SHAPES)))
def test_bf16_gemms_have_the_bits_of_the_gpu(number: int) -> None:
    """In fp32, and `F.linear` in bf16, with the split that cuBLASLt names; an A100's formula gives other ones."""
    tensors, facts = read("gemms")
    k, n = SHAPES[number]
    weight = integers(min(n, 4096), k, 1000 + number)[: CORNER[1]]
    compared = of_a100 = unsplit = 0
    for rows in ROWS:
        plan = facts[f"{rows} {k} {n}/plan_32MiB"]
        if plan["algo_id"] != NVJET:
            continue
        x = integers(rows, k, 5000 + rows)
        assert hashlib.sha256(x.view(torch.int16).numpy().tobytes()).hexdigest()[:16] == facts[f"{rows} {k} {n}/x"]
        x, recorded = x[: CORNER[0]], tensors[f"{rows} {k} {n}/fp32"]
        ours = chained(instruction("h200", "bf16"), x, weight, split(k, plan["split_k"]))
        assert count_of_others(ours, recorded) == 0, rows
        assert count_of_others(ours.bfloat16(), tensors[f"{rows} {k} {n}/cublas"]) == 0, rows
        few, corner = x[:NEIGHBOURS], recorded[:NEIGHBOURS]
        compared += corner.numel()
        of_a100 += count_of_others(chained(instruction("a100", "bf16"), few, weight, split(k, plan["split_k"])), corner)
        if plan["split_k"] > 1:
            unsplit += corner.numel() - count_of_others(chained(instruction("h200", "bf16"), few, weight, k), corner)
    assert of_a100 >= 0.8 * compared
    # With K in one chain hardly a number is the same, so that the plan shows.
    assert unsplit <= 0.05 * compared


def test_unaligned_shapes_have_other_algorithms() -> None:
    """What is left out above: 2044 x 516 and 1001 x 333, by CUTLASS and CUDA cores."""
    _, facts = read("gemms")
    others = {tuple(map(int, key.split("/")[0].split()[1:])) for key, plan in facts.items()
              if key.endswith("plan_32MiB") and plan["algo_id"] != NVJET}  # fmt: skip
    assert others == {(2044, 516), (1001, 333)}


def test_fp8_gemms_have_the_bits_of_the_gpu() -> None:
    """With fast accumulation one chain, without it a new one for each 128 of K; most numbers tell the two apart."""
    tensors, _ = read("gemms_of_fp8")
    native = instruction("h200", "fp8_e4m3")
    for name, recorded in tensors.items():
        rows, k, n = map(int, name.split()[:3])
        weight = integers(n, k, 7000 + k).to(torch.float8_e4m3fn)[: CORNER[1]]
        x = integers(rows, k, 8000 + rows).to(torch.float8_e4m3fn)[: CORNER[0]]
        # Few rows and few columns: cuBLASLt splits K in two.
        whole = k // 2 if (k, n) == (7168, 512) and rows < 1024 else k
        ours, others = whole, 128
        if name.endswith("promoted"):
            ours, others = others, ours
        assert count_of_others(chained(native, x, weight, ours), recorded) == 0, name
        assert count_of_others(chained(native, x[:1], weight, others), recorded[:1]) > 0.9 * 64, name
    assert len(tensors) == 32
