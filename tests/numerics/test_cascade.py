"""torch CPU's own sums against `cascade`, at the sizes where its tree changes, bit for bit.

The rows add up to rounding residue only (shuffled r and -r over 28 binades), so that another tree shows. ATen's vectors
have as many fp32 lanes here under every instruction set (default, AVX2, AVX-512).
"""

from __future__ import annotations

import pytest
import torch

from moeparity.numerics.bits import same_bits
from moeparity.numerics.orders import parse
from moeparity.numerics.summation import sum_axis
from tests.numerics.scalar import BF16, FP16, FP32, FP64

SIZES = (
    1,
    2,
    3,
    4,
    5,
    7,
    8,
    9,
    15,
    16,
    17,
    31,
    32,
    33,
    64,
    100,
    255,
    256,
    511,
    512,
    513,
    1000,
    2880,
    4096,
    7168,
    70000,
)
cascade, columns, columns_alone = tuple(map(parse, ("cascade", "cascade(lanes=1, accumulators=1)", "cascade(lanes=1)")))
halves = parse("cascade(halves)")


def residue(rows: int, n: int, dtype: torch.dtype, *, seed: int = 0) -> torch.Tensor:
    """Rows [rows, n] of shuffled pairs r, -r of spread exponents."""
    generator = torch.Generator().manual_seed(seed)
    half = torch.randn(rows, (n + 1) // 2, generator=generator)
    half *= torch.exp2(torch.randint(-14, 15, half.shape, generator=generator).float())
    pairs = torch.cat([half, -half], 1)[:, :n]
    order = torch.rand(rows, n, generator=generator).argsort(1)
    return pairs.gather(1, order).clamp(-6e4, 6e4).to(dtype)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    # A single sum of more than 32768 elements is cut in as many parts as there are threads.
    assert torch.get_num_threads() == 1


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("rows", [1, 2, 7, 64])
def test_rows(n: int, rows: int) -> None:
    x = residue(rows if n < 10_000 else min(rows, 2), n, FP32)
    total = sum_axis(x, cascade, -1, accumulate=FP32)
    assert same_bits(total, x.sum(-1))
    assert same_bits(total / n, x.mean(-1))


@pytest.mark.parametrize("n", SIZES[:-1])
@pytest.mark.parametrize("dtype", [BF16, FP16])
def test_rows_of_sixteen_bits(n: int, dtype: torch.dtype) -> None:
    x = residue(20, n, dtype)
    assert same_bits(sum_axis(x, halves, -1, accumulate=FP32).to(dtype), x.sum(-1))
    assert same_bits(sum_axis(x, cascade, -1, accumulate=FP32), x.sum(-1, dtype=FP32))


@pytest.mark.parametrize("n", [5, 16, 33, 1000, 2880, 7168])
def test_squares_of_an_rms_norm(n: int) -> None:
    x = residue(7, n, FP32, seed=1)
    assert same_bits(sum_axis(x * x, cascade, -1, accumulate=FP32) / n, x.pow(2).mean(-1))


@pytest.mark.parametrize("n", [*SIZES[:-3], 2048])
@pytest.mark.parametrize("width", [9, 64, 100, 1000])
def test_outer_dimensions_in_two_classes_of_columns(n: int, width: int) -> None:
    x = residue(width, n, FP32).t().contiguous()
    total = x.sum(0)
    groups_end = width // 32 * 32
    assert same_bits(sum_axis(x[:, :groups_end], columns, 0, accumulate=FP32), total[:groups_end])
    assert same_bits(sum_axis(x[:, groups_end:], columns_alone, 0, accumulate=FP32), total[groups_end:])


@pytest.mark.parametrize("n", [3, 8, 16])
def test_a_sum_over_few_slots_is_sequential(n: int) -> None:
    x = residue(5 * 64, n, FP32).view(5, 64, n).transpose(1, 2).contiguous()
    assert same_bits(sum_axis(x, parse("sequential(zero)"), 1, accumulate=FP32), x.sum(1))


def test_other_trees_are_told_apart() -> None:
    x = residue(200, 1000, FP32)
    for text in (
        "sequential",
        "lanes(16) | fold_hi",
        "cascade(lanes=16)",
        "cascade(accumulators=2)",
        "cascade(halves)",
    ):
        assert (sum_axis(x, parse(text), -1, accumulate=FP32) != x.sum(-1)).double().mean() > 0.5, text
    y = residue(200, 1000, BF16)
    assert (sum_axis(y, cascade, -1, accumulate=FP32).to(BF16) != y.sum(-1)).double().mean() > 0.1


def test_double_rows_take_half_as_many_lanes() -> None:
    x = residue(50, 1000, FP64)
    assert same_bits(sum_axis(x, parse("cascade(lanes=4)"), -1, accumulate=FP64), x.sum(-1))
