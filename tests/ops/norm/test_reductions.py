"""Launch rules against the kernels' own loops: threads, shuffles and shared memory on Python numbers, no trees."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from moeparity.numerics.orders import OrderError, parse
from moeparity.numerics.summation import sum_axis
from moeparity.ops.norm.launches import Launch, te_moments, te_order
from moeparity.ops.norm.reductions import RULES, order_of
from tests.ops.norm.test_fused_launches import FUSED_KERNELS
from tests.ops.norm.threads import (
    HIGH,
    LOW,
    Row,
    butterfly,
    down,
    f32,
    in_turn,
    ours,
    plus,
    row_of,
    square_added,
    sums,
    then_added,
    threads,
    twice_by,
    warps,
)
from tests.ops.norm.triton_blocks import eight_contracted, eight_squares, four_and_four, triton_tiles
from tests.ops.plain import BF16, FP16, FP32, assert_bits, random


def vllm(row: Row, rows: int) -> float:
    block = min(len(row) // math.gcd(8, len(row)), 256 if rows >= 256 else 1024)
    return in_turn([down(warp, LOW) for warp in warps(threads(row, block, math.gcd(8, len(row))))])


def vllm_fused_add(row: Row, rows: int) -> float:
    block = min(len(row), 256 if rows >= 256 else 1024)
    if len(row) % 8:
        return in_turn([down(warp, LOW) for warp in warps(threads(row, block, 1))])
    per_thread = [0.0] * block
    for i, first in enumerate(range(0, len(row), 8)):
        of_eight = 0.0
        for j in range(first, first + 8, 2):
            of_eight = plus(of_eight, plus(f32(row[j] ** 2), f32(row[j + 1] ** 2)))
        per_thread[i % block] = plus(per_thread[i % block], of_eight)
    return in_turn([down(warp, LOW) for warp in warps(per_thread)])


def flashinfer(row: Row, rows: int) -> float:
    vector = math.gcd(8, len(row))
    return twice_by(HIGH, threads(row, 32 * math.ceil(min(1024, len(row) // vector) / 32), vector))


def laddered(row: Row, offsets: tuple[int, ...], step: Callable[[float, float], float] = then_added) -> float:
    ladder = {64: 8, 128: 16, 3072: 32, 6144: 64, 16384: 128, 1 << 20: 256}
    return shared(row, next(count for widest, count in ladder.items() if len(row) <= widest), offsets, step)


def shared(row: Row, count: int, offsets: tuple[int, ...], step: Callable[[float, float], float] = then_added) -> float:
    per_thread = threads(row, count, math.gcd(8, len(row)), step)
    if count < 32:
        return butterfly(per_thread, tuple(offset for offset in offsets if offset < count))
    return twice_by(offsets, per_thread)


def cutedsl_qk(row: Row, rows: int) -> float:
    return shared(row, {37: 4, 40: 4, 96: 4, 128: 4, 136: 4, 256: 8, 1000: 16, 2880: 32}[len(row)], LOW)


def sglang(row: Row, rows: int) -> float:
    if len(row) <= 256:
        return butterfly(threads(row, 32, len(row) // 32), HIGH)
    return twice_by(HIGH, threads(row, len(row) // 8, 8))


def sglang_qk(row: Row, rows: int) -> float:
    return sglang(row, rows) if len(row) in {64, 128, 256, 512, 1024} else laddered(row, LOW, square_added)


def trtllm(row: Row, rows: int) -> float:
    block = 32 * math.ceil(min(len(row), 1024) / 32)
    per_thread = [0.0] * block
    for i in range(0, len(row), 2):
        thread = i // 2 % block
        per_thread[thread] = plus(per_thread[thread], plus(f32(row[i] ** 2), f32(row[i + 1] ** 2)))
    return twice_by(HIGH, per_thread)


# (hidden, rows) -> block.x, block.y, and whether a row is split over block.y.
CUDA_MEAN = {
    (4096, 64): (32, 16, False),
    (4096, 1): (512, 1, False),
    (4096, 4): (128, 4, False),
    (2880, 15): (64, 8, False),
    (8192, 64): (32, 16, True),
    (8192, 4): (128, 4, True),
    (8192, 1): (512, 1, True),
    (132, 3): (32, 2, False),
    (96, 3): (64, 2, False),
    (96, 40): (32, 16, False),
    (30, 7): (16, 4, False),
}


def cuda_mean(row: Row, rows: int, offsets: tuple[int, ...]) -> float:
    """Four accumulators a thread; x is halved in shared memory down to a warp, and shuffled; then y is halved.

    torch 2.13.0, Reduce.cuh, `run`: `block_x_reduce`, then `block_y_reduce`.
    """
    width, height, split = CUDA_MEAN[len(row), rows]
    height = height if split else 1
    per_thread = []
    for thread in range(width * height):
        four_sums = [0.0] * 4
        if len(row) >= 128:
            for first in range(4 * thread, len(row), 4 * width * height):
                four_sums = [then_added(four_sums[j], row[first + j]) for j in range(4)]
        else:
            for i, at in enumerate(range(thread, len(row), width)):
                four_sums[i % 4] = then_added(four_sums[i % 4], row[at])
        per_thread.append(plus(plus(plus(four_sums[0], four_sums[1]), four_sums[2]), four_sums[3]))
    block = [per_thread[width * y : width * (y + 1)] for y in range(height)]
    sums_of_y = [block_x(of_y, offsets) for of_y in block]
    while len(sums_of_y) > 1:
        sums_of_y = halved(sums_of_y)
    return sums_of_y[0]


def halved(values: Row) -> Row:
    half = len(values) // 2
    return [plus(a, b) for a, b in zip(values[:half], values[half:], strict=True)]


def block_x(of_y: Row, offsets: tuple[int, ...]) -> float:
    while len(of_y) > 32:
        of_y = halved(of_y)
    return down(of_y, tuple(offset for offset in offsets if offset < len(of_y)))


def cuda_rms_norm(row: Row, rows: int) -> float:
    first, second, third, fourth = (butterfly(warp, HIGH) for warp in warps(threads(row, 128, 4)))
    return plus(plus(first, third), plus(second, fourth))


def apex(row: Row, rows: int) -> float:
    """Lanes shifted in a circle by 1 to 16, of which lane 0 is taken."""
    shifted_sums = []
    for lanes in warps(threads(row, 128, 4)):
        shifted = lanes
        for offset in LOW:
            shifted = [plus(shifted[i], shifted[(i + offset) % 32]) for i in range(32)]
        shifted_sums.append(shifted[0])
    return plus(plus(shifted_sums[0], shifted_sums[2]), plus(shifted_sums[1], shifted_sums[3]))


def triton_row(row: Row, rows: int) -> float:
    tile = 1 << (len(row) - 1).bit_length()
    count = 32 * (16 if tile >= 8192 else 8 if tile >= 2048 else 4)
    return twice_by(HIGH, threads(row, count, max(1, min(8, tile // count)), then_added))


WIDTHS = (40, 96, 136, 1000, 2880, 4096, 7168)
KERNELS: dict[str, tuple[Callable[[Row, int], float], list[tuple[int, int]]]] = {
    "vllm.rms_norm": (vllm, [(h, rows) for h in (*WIDTHS, 37) for rows in (3, 255, 256)]),
    "vllm.fused_add_rms_norm": (vllm_fused_add, [(h, rows) for h in (*WIDTHS, 37) for rows in (255, 256)]),
    "vllm.batch_invariant": (lambda row, _: triton_tiles(row, eight_squares), [(h, 5) for h in (*WIDTHS, 37)]),
    "sglang.batch_invariant_mean": (
        lambda row, _: triton_tiles(row, four_and_four),
        [(h, 5) for h in (16, 96, 128, 528, 1008, 2880, 4096, 7168)],
    ),
    "flashinfer.rms_norm": (flashinfer, [(h, 5) for h in (*WIDTHS, 37, 10000)]),
    "flashinfer.cutedsl_rms_norm": (
        lambda row, _: laddered(row, LOW, square_added),
        [(h, 5) for h in (*WIDTHS, 37, 10000, 20000)],
    ),
    "flashinfer.cutedsl_qk_rms_norm_sm100": (cutedsl_qk, [(h, 5) for h in (37, 40, 96, 128, 136, 256, 1000, 2880)]),
    "quack.rms_norm": (lambda row, _: laddered(row, HIGH), [(h, 5) for h in (*WIDTHS, 37, 10000)]),
    "sglang.rms_norm": (sglang, [(h, 5) for h in (64, 128, 256, 768, 2816, 7168)]),
    "sglang.qk_rms_norm": (sglang_qk, [(h, 5) for h in (40, 64, 96, 128, 256, 512, 1024, 2880)]),
    "trtllm.rms_norm": (trtllm, [(h, 5) for h in (*WIDTHS, 38)]),
    "torch.cuda_mean": (lambda row, rows: cuda_mean(row, rows, HIGH), list(CUDA_MEAN)),
    "torch.cuda_mean_2_9": (lambda row, rows: cuda_mean(row, rows, LOW), list(CUDA_MEAN)),
    "torch.cuda_rms_norm": (cuda_rms_norm, [(h, 5) for h in WIDTHS]),
    "liger.rms_norm": (triton_row, [(h, 5) for h in (*WIDTHS, 37, 10000)]),
    "apex.rms_norm": (apex, [(h, 5) for h in (*WIDTHS, 37)]),
}


def test_every_rule_has_a_kernel() -> None:
    assert KERNELS.keys() | FUSED_KERNELS.keys() == RULES.keys()
    assert KERNELS.keys().isdisjoint(FUSED_KERNELS)


@pytest.mark.parametrize("name", KERNELS)
def test_a_rule_adds_as_its_kernel_does(name: str) -> None:
    kernel, launches = KERNELS[name]
    for seed, (hidden, rows) in enumerate(launches):
        row = row_of(hidden, seed)
        assert_bits(ours(name, row, rows, ranks=1), torch.tensor([kernel(row, rows)], dtype=FP32))


@pytest.mark.parametrize("hidden", [40, 128, 2880, 4096])
def test_contraction_in_triton_tiles_does_not_show_in_16_bit_rows(hidden: int) -> None:
    row = torch.tensor(row_of(hidden, hidden)).to(BF16).tolist()
    assert_bits(
        ours("vllm.batch_invariant", row, 5, ranks=1), torch.tensor([triton_tiles(row, eight_contracted)], dtype=FP32)
    )


# Hidden size, rows, ranks: where kernels that are alike elsewhere part.
LAUNCHES = ((4096, 8, 1), (7168, 600, 8), (8192, 20, 16), (128, 8, 1))


def test_rules_differ_from_each_other() -> None:
    """No two kernels have one order at all launches; some refuse some."""
    sums_of_rules: dict[str, list[float]] = {name: [] for name in RULES}
    for hidden, rows, ranks in LAUNCHES:
        x = torch.tensor([row_of(hidden, seed) for seed in range(8)], dtype=FP32)
        for name, of_all in sums_of_rules.items():
            try:
                of_all.extend(sums(name, x, rows, ranks).tolist())
            except OrderError:
                of_all.append(-1.0)
    assert len(set(map(tuple, sums_of_rules.values()))) == len(sums_of_rules)


def test_a_rule_explains_itself() -> None:
    assert RULES["trtllm.all_reduce_rms_norm"].explain(4096, rows=range(1, 100)).splitlines() == [
        "rows 1 to 33  blocks(8, fma) | fold_hi(32) | fold_hi(4) | sequential",
        "rows 34 to 66  blocks(8, fma) | fold_hi(32) | fold_hi(8) | sequential",
        "rows 67 to 99  blocks(8, fma) | fold_hi(32) | fold_hi",
    ]
    assert RULES["apex.rms_norm"].explain(4096, rows=[1], dtype="fp16") == (
        "rows 1  threads(128, vector=8, fma) | fold_lo(32) | fold_hi"
    )


@pytest.mark.parametrize(
    ("name", "hidden", "dtype"),
    [
        ("vllm.batch_invariant", 4096, "fp32"),
        ("sglang.batch_invariant_mean", 4104, "fp32"),
        ("flashinfer.cutedsl_rms_norm", 28680, "bf16"),
        ("flashinfer.cutedsl_qk_rms_norm_sm100", 14340, "fp32"),
        ("quack.rms_norm", 16392, "bf16"),
        ("quack.rms_norm", 32769, "fp32"),
        ("sglang.rms_norm", 2880, "bf16"),
        ("sglang.rms_norm", 1024, "fp32"),
        ("trtllm.rms_norm", 37, "bf16"),
        ("torch.cuda_mean", 130, "bf16"),
        ("torch.cuda_rms_norm", 130, "bf16"),
    ],
)
def test_launches_that_are_refused(name: str, hidden: int, dtype: str) -> None:
    with pytest.raises(OrderError, match=rf"^{name} needs .*, not {hidden} elements in {dtype}\.$"):
        order_of(name, Launch(hidden=hidden, dtype=dtype))


def test_short_rows_of_which_there_are_many_are_refused_by_liger() -> None:
    assert order_of("liger.rms_norm", Launch(hidden=128, rows=32767)) == order_of("liger.rms_norm", Launch(hidden=128))
    with pytest.raises(
        OrderError, match=r"^liger.rms_norm needs fewer than 32768 rows to 256 wide, of which there are"
    ):
        order_of("liger.rms_norm", Launch(hidden=128, rows=32768))
    assert order_of("liger.rms_norm", Launch(hidden=257, rows=32768))


@pytest.mark.parametrize(("dtype", "shows"), [(BF16, False), (FP16, False), (FP32, True)])
@pytest.mark.parametrize("name", ["flashinfer.rms_norm", "vllm.rms_norm"])
def test_a_contraction_shows_in_unrounded_rows_only(name: str, dtype: torch.dtype, *, shows: bool) -> None:
    """The square of a 16-bit number is exact in fp32."""
    x = random(64, 1000, dtype=dtype).float()
    order = order_of(name, Launch(hidden=1000, rows=64))
    fused = sum_axis(x, order, -1, accumulate=FP32, times=x)
    apart = sum_axis(x * x, parse(str(order).replace(", fma", "")), -1, accumulate=FP32)
    assert torch.equal(fused, apart) != shows


@pytest.mark.parametrize(
    ("hidden", "dtype"), [(100, "bf16"), (1000, "bf16"), (2880, "fp32"), (7168, "bf16"), (20000, "bf16")]
)
def test_transformer_engine_adds_as_its_general_kernel_does(hidden: int, dtype: str) -> None:
    """Threads in the order of warp, block and lane; a butterfly of one warp, else a fold down and the warps in turn."""
    launch, row = Launch(hidden=hidden, rows=5, dtype=dtype), row_of(hidden, hidden)
    vector = 4 if hidden <= 128 or dtype == "fp32" else 8
    assert te_moments(launch) is None
    if hidden <= 2048:
        expected = butterfly(threads(row, 32, vector), LOW)
    else:
        blocks = math.ceil(hidden / 8192)
        each = [down(warp, HIGH) for warp in warps(threads(row, 128 * blocks, vector))]
        by_block = [in_turn(each[block::blocks]) for block in range(blocks)]
        expected = by_block[0] if blocks == 1 else butterfly(by_block, LOW)
    x = torch.tensor([row], dtype=FP32)
    total = sum_axis(x, order_of(te_order(launch), launch), -1, accumulate=FP32, times=x)
    assert_bits(total, torch.tensor([expected], dtype=FP32))


@pytest.mark.parametrize(("hidden", "rows", "warps_of"), [(768, 4, 1), (4096, 8, 4), (768, 5, None), (2880, 4, None)])
def test_transformer_engine_tunes_by_rows_and_hidden_size(hidden: int, rows: int, warps_of: int | None) -> None:
    tuned = te_moments(Launch(hidden=hidden, rows=rows))
    assert (None if tuned is None else tuned.warps) == warps_of
