"""Welford's statistic one number at a time, with 512 threads, shuffles and shared memory as torch's kernel has them."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
import torch

from tests.numerics.scalar import FP64, fma, nearest
from tests.ops.norm.test_norm import EPS, Row, exact, norm, rstd_of
from tests.ops.plain import BF16, FP32, assert_bits, random, times

Part = tuple[float, float, float]
"""Mean, M2 and number of elements."""
EMPTY: Part = (0.0, 0.0, 0.0)


def updated(part: Part, x: float) -> Part:
    mean, m2, count = part
    delta = exact("-", x, mean)
    mean = exact("+", mean, exact("/", delta, count + 1))
    return mean, fma(delta, exact("-", x, mean), m2, FP32), count + 1


def merged(a: Part, b: Part) -> Part:
    if a[2] == 0:
        return b
    if b[2] == 0:
        return a
    delta, count = exact("-", b[0], a[0]), a[2] + b[2]
    share = exact("/", b[2], count)
    weighted = exact("*", exact("*", delta, delta), a[2])
    return fma(delta, share, a[0], FP32), fma(weighted, share, exact("+", a[1], b[1]), FP32), count


def down(lanes: list[Part]) -> Part:
    """__shfl_down_sync of a whole warp: a lane beyond the last hands back the asker's own value. Lane 0 is taken."""
    for offset in (16, 8, 4, 2, 1):
        lanes = [merged(lane, lanes[i + offset if i + offset < 32 else i]) for i, lane in enumerate(lanes)]
    return lanes[0]


def welford(row: Row) -> float:
    """Variance + mean^2, before eps."""
    parts = [EMPTY] * 512
    for i, x in enumerate(row):
        parts[i % 512] = updated(parts[i % 512], x)
    shared = [down(parts[i : i + 32]) for i in range(0, 512, 32)]
    mean, m2, count = down(shared + [EMPTY] * 16)
    assert count == len(row)
    return fma(mean, mean, exact("/", m2, count), FP32)


@pytest.mark.parametrize("dtype", [BF16, FP32])
@pytest.mark.parametrize("width", [1, 37, 45, 1537])
def test_each_row_against_fractions(width: int, dtype: torch.dtype) -> None:
    # Fractions are slow: of the row in which threads take several elements there is one.
    x, weight = random(3 if width < 512 else 1, width, dtype=dtype) * 3 + 0.5, random(width, dtype=FP32, seed=1)
    rows = x.double().tolist()
    rstds = [[rstd_of(exact("+", welford(row), nearest(EPS, FP32)), "sqrt_div")] for row in rows]
    expected = times(times(x, torch.tensor(rstds, dtype=FP32), FP32), weight, FP32)
    assert_bits(norm(x, weight, statistic="welford", rsqrt="sqrt_div"), expected)


def test_it_is_another_sum_than_two_passes() -> None:
    x, weight = random(64, 1537, dtype=FP32) + 0.5, random(1537, dtype=FP32, seed=1)
    at: dict[str, Any] = {"order": "lanes(512) | fold_hi", "rsqrt": "sqrt_div"}
    forms = [norm(x, weight, statistic=name, **at) for name in ("mean_square", "two_pass", "welford")]
    for i, first in enumerate(forms):
        assert not any(torch.equal(first, second) for second in forms[:i])


def test_fp64_rows_have_an_fp64_statistic() -> None:
    """Nearer to the mean square than any fp32 number needs to be."""
    x = random(2, 45, dtype=FP64) * 3
    ones = torch.ones(45, dtype=FP64)
    normed = norm(x, ones, statistic="welford", scaled=FP64, weight=FP64, normalized=FP64, output=FP64)
    for row, normalized in zip(x.tolist(), normed.tolist(), strict=True):
        square = sum((Fraction(value) ** 2 for value in row), Fraction(EPS) * 45) / 45
        for value, result in zip(row, normalized, strict=True):
            assert abs(Fraction(result) ** 2 * square - Fraction(value) ** 2) < Fraction(value) ** 2 / 2**45


def test_no_rows() -> None:
    assert norm(torch.empty(2, 0, 45), torch.ones(45), statistic="welford").shape == (2, 0, 45)
