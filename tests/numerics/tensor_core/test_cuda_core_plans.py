"""cuBLASLt's kernels on CUDA cores: GEMMs that an H200 computed by them, and what bitequiv says of their numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.gpu.hardware import SHAPES, integers
from moeparity.numerics.gemm import gemm
from moeparity.numerics.tensor_core.cuda_core_plans import CudaCorePlan, plan_on_cuda_cores
from moeparity.numerics.tensor_core.cuda_core_product import cuda_core_product
from moeparity.numerics.tensor_core.gemm_plans import FIELDS, is_held, plan_for
from tests.recorded.files import count_of_others, read

F32 = np.float32
BF16 = torch.bfloat16
CASES = json.loads((Path(__file__).parent / "recorded" / "cublas_cuda_cores.json").read_text("utf-8"))
NEIGHBOURS = [CudaCorePlan(13, option) for option in (0, 5, 10, 11, 48, 49, 74, 81)] + [CudaCorePlan(16)]


def numbers(algorithm: int, option: int, splits: int) -> dict[str, int]:
    of = {"algo_id": algorithm, "custom_option": option, "split_k": splits}
    return {name: of.get(name, 0) for name in FIELDS}


# As an H200 recorded it


@pytest.mark.parametrize(("k", "n"), [(2044, 516), (1001, 333)])
def test_a_gemv_has_the_bits_of_an_h200(k: int, n: int) -> None:
    """In fp32 and in bf16; in fp32 other kernels' orders change over half of the numbers."""
    tensors, facts = read("gemms")
    weight = integers(n, k, 1000 + SHAPES.index((k, n)))[:64]
    x, planned = integers(1, k, 5001), [facts[f"1 {k} {n}/plan_32MiB"][name] for name in FIELDS]
    plan = plan_for(planned, (1, n, k), "sm_90")
    assert isinstance(plan, CudaCorePlan)
    assert is_held(planned)
    of_gpu = tensors[f"1 {k} {n}/fp32"]
    ours = cuda_core_product(x, weight, plan)
    assert count_of_others(ours, of_gpu) == 0
    order = f"cublaslt(h200: bf16 bf16 64x{k} 1={plan})"
    by_order = gemm(x, weight, None, inputs=BF16, output=BF16, order=order)
    assert count_of_others(by_order, tensors[f"1 {k} {n}/cublas"]) == 0
    for neighbour in NEIGHBOURS:
        assert count_of_others(cuda_core_product(x, weight, neighbour), of_gpu) > 0.5 * of_gpu.numel(), neighbour


# As bitequiv has it


def chain(products: list[np.float32]) -> np.float32:
    total = F32(0)
    for product in products:
        total = F32(total + product)
    return total


def folded(parts: list[np.float32]) -> np.float32:
    """The lanes of a warp, halves onto each other."""
    while len(parts) > 1:
        half = len(parts) // 2
        parts = [F32(a + b) for a, b in zip(parts[:half], parts[half:], strict=True)]
    return parts[0]


def of_lanes(products: list[np.float32], of_slice: int, recipe: list[Any]) -> np.float32:
    """gemv2T and gemv2N over one slice of K; a lane's vector goes by the length of the first one."""
    vector, lanes, chunk, down = recipe
    share = -(-of_slice // lanes)
    vector = vector if vector > 0 else min(-vector, share)
    tile = vector * lanes
    tiles = -(-len(products) // tile)
    chunk = chunk or tiles
    totals = []
    for lane in range(lanes):
        chains = []
        for first in range(0, tiles, chunk):
            places = (t * tile + lane * vector + s for t in range(first, first + chunk) for s in range(vector))
            chains.append(chain([products[place] for place in places if place < len(products)]))
        totals.append(chain(chains))
    return folded(totals) if down else chain(totals)


def in_slices(products: list[np.float32], threads: int, block: int) -> np.float32:
    """Contiguous shares, each in blocks."""
    share = -(-len(products) // threads)
    totals = []
    for start in range(0, len(products), share):
        part = products[start : start + share]
        size = block or len(part)
        totals.append(chain([chain(part[i : i + size]) for i in range(0, len(part), size)]))
    return chain(totals)


def by_hand(products: list[np.float32], mode: str, recipe: list[Any]) -> np.float32:
    if mode != "gemv13":
        return in_slices(products, *recipe)
    of, splits = recipe
    part = -(-len(products) // splits)
    return chain([of_lanes(products[i : i + part], part, of) for i in range(0, len(products), part)])


@pytest.mark.parametrize("case", CASES, ids=str)
def test_numbers_stand_for_what_bitequiv_says(case: list[Any]) -> None:
    """The same orders, number by number, of rows with a rest; or none."""
    m, n, _, algorithm, splits, option, says = case
    plan = plan_on_cuda_cores(numbers(algorithm, option, splits), n, m)
    assert (plan is None) == (says is None)
    if plan is None:
        return
    for k in (45, 701):
        x, weight = (integers(1, k, seed) for seed in (k, k + 1))
        products = [F32(product) for product in x.float().mul(weight.float())[0].numpy()]
        ours = cuda_core_product(x, weight, plan)
        assert ours.item() == by_hand(products, *says)


def test_they_are_hoppers_and_a_gemvs() -> None:
    planned = list(numbers(13, 75, 1).values())
    assert plan_for(planned, (1, 64, 128), "sm_90") == CudaCorePlan(13, 75)
    assert plan_for(planned, (1, 64, 128), "sm_100") is None
    assert plan_for(planned, (2, 64, 128), "sm_90") is None
    assert not is_held(list(numbers(13, 74, 1).values()))


def test_many_outputs_are_computed_in_parts() -> None:
    x, weight = integers(2, 700, 1), integers(9000, 700, 2)
    whole = cuda_core_product(x, weight, CudaCorePlan(11))
    assert count_of_others(whole[:, 4000:4050], cuda_core_product(x, weight[4000:4050], CudaCorePlan(11))) == 0
