"""Plans of cuBLASLt: what its numbers stand for, and the GEMMs that an H200 computed by them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from benchmarks.gpu.hardware import ROWS, SHAPES, integers
from moeparity.numerics.gemm import FormError, gemm
from moeparity.numerics.orders import OrderError
from moeparity.numerics.tensor_core.gemm_plans import FIELDS, GemmPlan, plan_of
from moeparity.numerics.tensor_core.instructions import instruction
from moeparity.numerics.tensor_core.planned_order import PlannedOrder, planned_order
from moeparity.numerics.tensor_core.planned_product import planned_product
from tests.recorded.files import count_of_others, read

BF16 = torch.bfloat16
H200 = instruction("h200", "bf16")
UNALIGNED = [(k, n) for k, n in SHAPES if k % 8 or n % 8]


def numbers(algo_id: int, split_k: int = 1, scheme: int = 0, stages_id: int = 0, custom: int = 0) -> list[int]:
    of = {"algo_id": algo_id, "split_k": split_k, "reduction_scheme": scheme, "stages_id": stages_id,
          "custom_option": custom}  # fmt: skip
    return [of.get(name, 0) for name in FIELDS]


def recorded_plan(rows: int, k: int, n: int) -> GemmPlan | None:
    _, facts = read("gemms")
    plan = facts[f"{rows} {k} {n}/plan_32MiB"]
    return plan_of([plan[name] for name in FIELDS], k)


# As an H200 recorded it


@pytest.mark.parametrize(("k", "n"), UNALIGNED)
def test_gemms_of_cutlass_have_the_bits_of_an_h200(k: int, n: int) -> None:
    """In bf16, and where parts stay fp32 in fp32 too; other merges give others.

    So does what is left over by blocks of K, if it comes last.
    """
    tensors, _ = read("gemms")
    weight = integers(n, k, 1000 + SHAPES.index((k, n)))[:64]
    schemes, moved = set(), 0
    for rows in ROWS:
        plan = recorded_plan(rows, k, n)
        if plan is None:
            continue
        x = integers(rows, k, 5000 + rows)[:16]
        schemes.add(plan.scheme)
        of_gpu = tensors[f"{rows} {k} {n}/cublas"]
        ours = planned_product(H200, x, weight, plan, BF16)
        assert count_of_others(ours.bfloat16(), of_gpu) == 0, rows
        in_fp32 = planned_product(H200, x, weight, plan, torch.float32)
        assert count_of_others(in_fp32, tensors[f"{rows} {k} {n}/fp32"]) == 0, rows
        for neighbour in (replace(plan, scheme=6 - plan.scheme), replace(plan, scheme=0)):
            theirs = planned_product(H200, x, weight, neighbour, BF16).bfloat16()
            assert count_of_others(theirs, of_gpu) > 0.3 * of_gpu.numel(), (rows, neighbour)
        rest_last = planned_product(H200, x, weight, replace(plan, block=k + 1), torch.float32)
        lengths = [cut.stop - cut.start for cut in plan.parts(k)]
        if any(length > plan.block and length % plan.block % plan.step for length in lengths):
            assert count_of_others(rest_last, tensors[f"{rows} {k} {n}/fp32"]) > 0.05 * of_gpu.numel(), rows
            moved += 1
    assert schemes == ({2, 4} if k == 2044 else {2})
    assert moved >= 1


def test_an_order_of_plans_takes_the_plan_of_its_rows() -> None:
    """K 2880, N 2880 on an H200: two parts of K for up to 16 rows, and one for more."""
    tensors, facts = read("gemms")
    k, n = 2880, 2880
    runs = []
    for rows in ROWS:
        plan = recorded_plan(rows, k, n)
        assert plan is not None
        runs.append((rows, rows, plan))
    order = str(PlannedOrder("h200", {(n, k, "bf16", "bf16"): tuple(runs), (64, k, "bf16", "bf16"): tuple(runs)}))
    weight = integers(n, k, 1000 + SHAPES.index((k, n)))[:64]
    outputs = {}
    for rows in ROWS[:-1]:
        x = integers(rows, k, 5000 + rows)
        outputs[rows] = gemm(x, weight, None, inputs=BF16, output=BF16, order=order)
        assert count_of_others(outputs[rows][:16], tensors[f"{rows} {k} {n}/cublas"]) == 0, rows
    assert [plan.splits for *_, plan in runs] == [2, 2, 2, 2, 1, 1, 1, 1]
    x = integers(200, k, 5200)
    alone = gemm(x[:1], weight, None, inputs=BF16, output=torch.float32, order=order.replace("bf16 bf16", "bf16 fp32"))
    whole = gemm(x, weight, None, inputs=BF16, output=torch.float32, order=order.replace("bf16 bf16", "bf16 fp32"))
    assert count_of_others(alone, whole[:1]) > 32
    assert facts["library/version"] == 130100


# What the numbers stand for


@pytest.mark.parametrize(
    ("config", "k", "parts", "step", "block"),
    [
        (numbers(66, 2, 2, 35), 4096, [2048, 2048], 0, 0),
        (numbers(66, 3, 2, 35), 2048, [704, 704, 640], 0, 0),
        (numbers(12, 2, 2, 0), 3000, [1504, 1496], 8, 32),
        (numbers(21, 8, 4, 7), 21128, [2648] * 7 + [2592], 16, 32),
        (numbers(23, 8, 1, 13), 8192, [1024] * 8, 16, 64),
        (numbers(24, 2, 0, 19), 4096, [2048, 2048], 16, 128),
        (numbers(12, 1, 0, 25), 3000, [3000], 16, 32),
    ],
)
def test_what_bitequiv_reads_in_them(config: list[int], k: int, parts: list[int], step: int, block: int) -> None:
    """facebookexperimental/triton db4666f, bitequiv/tests/fixtures/cublas_plan_sm90_lt13_1.json."""
    plan = plan_of(config, k)
    assert plan is not None
    assert [cut.stop - cut.start for cut in plan.parts(k)] == parts
    assert (plan.step, plan.block) == (step, block)
    if len(parts) > 1:
        merge = config[FIELDS.index("reduction_scheme")]
        assert (plan.keeps_output, plan.rounds_parts) == (merge in (0, 1), merge == 4)


def test_what_is_left_over_comes_first() -> None:
    plan = plan_of(numbers(23, 1, 0, 20), 2044)
    assert plan is not None
    steps = [(step.start, step.stop) for step in plan.steps(2044)]
    assert steps[6:9] == [(96, 112), (112, 124), (124, 140)]
    assert steps[-1] == (2028, 2044)


@pytest.mark.parametrize(
    "config",
    [numbers(13, custom=75), numbers(11), numbers(14), numbers(16), numbers(66, 1, 0, 136), numbers(66, 512, 2, 35),
     numbers(23, 1, 0, 125), numbers(166), numbers(66, 4, 3, 35)],
)  # fmt: skip
def test_other_numbers_stand_for_nothing(config: list[int]) -> None:
    assert plan_of(config, 64) is None


def test_a_running_total_is_rounded_after_every_part() -> None:
    x, weight = (integers(4, 256, seed).bfloat16() for seed in (1, 2))
    plan = GemmPlan(4, 1, 16, 32)
    total = torch.zeros(4, 4)
    for cut in plan.parts(256):
        total = (total + planned_product(H200, x[:, cut], weight[:, cut], GemmPlan(1), BF16)).bfloat16().float()
    ours = planned_product(H200, x, weight, plan, BF16)
    assert count_of_others(ours, total) == 0
    assert count_of_others(ours.bfloat16(), planned_product(H200, x, weight, GemmPlan(4), BF16).bfloat16()) > 0


# Orders written


TEXT = "cublaslt(h200: bf16 bf16 64x128 1-4=2 5=13/2/16/128 6=algorithm14 8=cores13/75/1)"


def test_an_order_is_read_as_it_is_written() -> None:
    order = planned_order(TEXT)
    assert str(order) == TEXT
    assert planned_order("tensor_core(h100)") is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("cublaslt(h300: bf16 bf16 64x128 1=2)", "'h300' has no known arithmetic"),
        ("cublaslt(h200)", "holds no plans of cuBLASLt; expected such as"),
        ("cublaslt(h200: bf16 bf16 64x128 1=2=3)", "holds no plans|is no plan"),
        ("cublaslt(h200: bf16 bf16 64x128 1=2/3)", "'1=2/3' is no plan"),
    ],
)
def test_a_misspelt_order_is_refused(text: str, reason: str) -> None:
    with pytest.raises(OrderError, match=reason):
        planned_order(text)


@pytest.mark.parametrize(
    ("rows", "n", "form", "reason"),
    [
        (6, 64, {}, "cuBLASLt takes algorithm 14 for N 64, K 128 and 6 rows; how it adds is not modelled"),
        (7, 64, {}, "hold other numbers of rows than 7. Ask again with `moeparity kernel plans --rows 7`"),
        (1, 32, {}, "the plans hold no GEMM of N 32, K 128 with bf16 operands and a bf16 result"),
        (1, 64, {"splits": 2}, "splits: the plans say into how many parts K is cut"),
        (1, 64, {"bias": torch.zeros(64)}, "plans are of GEMMs without a bias"),
        (1, 64, {"inputs": torch.float8_e5m2}, "the plans hold no GEMM of N 64, K 128 with fp8_e5m2 operands"),
    ],
)
def test_a_gemm_without_a_plan_is_refused(rows: int, n: int, form: dict[str, object], reason: str) -> None:
    arguments = {"bias": None, "inputs": BF16, **form}
    bias = arguments.pop("bias")
    with pytest.raises(FormError, match=reason):
        gemm(torch.zeros(rows, 128), torch.zeros(n, 128), bias, output=BF16, order=TEXT, **arguments)  # type: ignore[arg-type]
