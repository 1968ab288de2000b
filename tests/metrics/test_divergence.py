"""`compare` against a scalar implementation on raw bits, and the cases where definitions differ between tools."""

from __future__ import annotations

import math
import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moeparity.metrics.divergence import Error, compare

BF16, FP16, FP32, FP64 = torch.bfloat16, torch.float16, torch.float32, torch.float64
WIDTH = {BF16: 16, FP16: 16, FP32: 32, FP64: 64}
INTS = {16: torch.int16, 32: torch.int32, 64: torch.int64}
FINENESS = [BF16, FP16, FP32, FP64]
# 0, least and greatest denormal, least normal, 1, greatest finite, infinity, quiet NaN.
SPECIAL = {
    BF16: [0, 1, 0x7F, 0x80, 0x3F80, 0x7F7F, 0x7F80, 0x7FC0],
    FP16: [0, 1, 0x3FF, 0x400, 0x3C00, 0x7BFF, 0x7C00, 0x7E00],
    FP32: [0, 1, 0x7FFFFF, 0x800000, 0x3F800000, 0x7F7FFFFF, 0x7F800000, 0x7FC00000],
    FP64: [0, 1, (1 << 52) - 1, 1 << 52, 0x3FF << 52, (0x7FF << 52) - 1, 0x7FF << 52, 0xFFF << 51],
}


def from_bits(patterns: list[int], dtype: torch.dtype) -> torch.Tensor:
    width = WIDTH[dtype]
    signed = [p - (1 << width) if p >> (width - 1) else p for p in patterns]
    return torch.tensor(signed, dtype=INTS[width]).view(dtype)


def decode(pattern: int, dtype: torch.dtype) -> float:
    if dtype == BF16:
        return decode(pattern << 16, FP32)
    code = {FP16: "<He", FP32: "<If", FP64: "<Qd"}[dtype]
    return struct.unpack("<" + code[2], struct.pack("<" + code[1], pattern))[0]


def encode(value: float, dtype: torch.dtype) -> int:
    """The bits of `value` rounded to nearest even; 16-bit dtypes are reached by way of fp32."""
    if math.isnan(value):
        return SPECIAL[dtype][-1] | (int(math.copysign(1, value) < 0) << (WIDTH[dtype] - 1))
    if dtype == FP64:
        return struct.unpack("<Q", struct.pack("<d", value))[0]
    try:
        single = struct.unpack("<I", struct.pack("<f", value))[0]
        if dtype == FP16:
            return struct.unpack("<H", struct.pack("<e", decode(single, FP32)))[0]
    except OverflowError:
        return SPECIAL[dtype][-2] | (int(value < 0) << (WIDTH[dtype] - 1))
    if dtype == FP32:
        return single
    return (single + 0x7FFF + ((single >> 16) & 1)) >> 16


def place(pattern: int, dtype: torch.dtype) -> int:
    sign = 1 << (WIDTH[dtype] - 1)
    return -(pattern - sign) if pattern >= sign else pattern


def total(values: list[float]) -> float:
    try:
        return math.fsum(values)
    except OverflowError:
        return math.inf


def scalar_compare(a: list[int], b: list[int], dtype_a: torch.dtype, dtype_b: torch.dtype) -> dict[str, object]:
    """Every field of `Error` by one loop over raw bits."""
    coarse = min(dtype_a, dtype_b, key=FINENESS.index)
    wide = FP32 if {dtype_a, dtype_b} == {BF16, FP16} else max(dtype_a, dtype_b, key=FINENESS.index)
    equal = excluded = bad_a = bad_b = 0
    gaps: list[float] = [0.0]
    ulps: list[int] = [0]
    references: list[float] = []
    for p, q in zip(a, b, strict=True):
        x, y = decode(p, dtype_a), decode(q, dtype_b)
        same = p == q if dtype_a == dtype_b else not math.isnan(x) and encode(x, wide) == encode(y, wide)
        equal += same
        bad_a += not math.isfinite(x)
        bad_b += not math.isfinite(y)
        if math.isfinite(x) and math.isfinite(y):
            gaps.append(abs(x - y))
            references.append(x)
            ulps.append(abs(place(encode(x, coarse), coarse) - place(encode(y, coarse), coarse)))
        else:
            excluded += not same
    return {
        "elements": len(a),
        "equal": equal,
        "max_abs": max(gaps),
        "sum_abs": total(gaps),
        "max_ulp": max(ulps),
        "sum_ulp": sum(ulps),
        "squared_difference": total([g * g for g in gaps]),
        "squared_reference": total([r * r for r in references]),
        "nonfinite": (bad_a, bad_b),
        "excluded": excluded,
    }


def assert_matches(error: Error, expected: dict[str, object]) -> None:
    for name, value in expected.items():
        if name in ("sum_abs", "squared_difference", "squared_reference"):
            assert getattr(error, name) == pytest.approx(value, rel=1e-12, abs=1e-300), name
        else:
            assert getattr(error, name) == value, name


def pattern_of(dtype: torch.dtype) -> st.SearchStrategy[int]:
    sign = 1 << (WIDTH[dtype] - 1)
    magnitudes = st.integers(0, sign - 1) | st.sampled_from(SPECIAL[dtype])
    return st.tuples(magnitudes, st.booleans()).map(lambda pair: pair[0] + sign * pair[1])


@st.composite
def same_dtype_pair(draw: st.DrawFn, dtype: torch.dtype) -> tuple[list[int], list[int]]:
    """Patterns of which some are equal, some a few ulps apart and some unrelated."""
    a = draw(st.lists(pattern_of(dtype), min_size=1, max_size=12))
    steps = st.one_of(st.just(0), st.integers(-3, 3), pattern_of(dtype))
    return a, [(p + draw(steps)) % (1 << WIDTH[dtype]) for p in a]


@pytest.mark.parametrize("dtype", [BF16, FP16, FP32])
@settings(max_examples=150)
@given(data=st.data())
def test_equals_scalar_loop_for_any_bits(dtype: torch.dtype, data: st.DataObject) -> None:
    a, b = data.draw(same_dtype_pair(dtype))
    assert_matches(compare(from_bits(a, dtype), from_bits(b, dtype)), scalar_compare(a, b, dtype, dtype))


@settings(max_examples=150)
@given(data=st.data())
def test_equals_scalar_loop_for_fp64_bits(data: st.DataObject) -> None:
    a, b = data.draw(same_dtype_pair(FP64))
    assert_matches(compare(from_bits(a, FP64), from_bits(b, FP64)), scalar_compare(a, b, FP64, FP64))


@pytest.mark.parametrize(
    ("first", "second"),
    [(BF16, FP16), (BF16, FP32), (FP16, FP32), (FP32, BF16), (FP32, FP16), (BF16, FP64), (FP16, FP64), (FP32, FP64)],
)
@settings(max_examples=60)
@given(data=st.data())
def test_mixed_dtypes_equal_scalar_loop(first: torch.dtype, second: torch.dtype, data: st.DataObject) -> None:
    a = data.draw(st.lists(pattern_of(first), min_size=1, max_size=12))
    values = [decode(p, first) for p in a]
    near = [encode(v, second) for v in values]
    any_pattern = pattern_of(second)
    b = [data.draw(st.one_of(st.just(p), st.just(p ^ 1), any_pattern)) for p in near]
    assert_matches(compare(from_bits(a, first), from_bits(b, second)), scalar_compare(a, b, first, second))


def test_hand_checked_bf16() -> None:
    error = compare(
        torch.tensor([1.0, 2.0, -1.0, 3.0], dtype=BF16), torch.tensor([1.0078125, 2.0, 1.0, 2.984375], dtype=BF16)
    )
    # 1 + 2^-7 is the next bf16 after 1; from -1 to 1 lie 2 * 0x3F80 steps; 2.984375 is the bf16 before 3.
    assert (error.elements, error.equal, error.max_abs) == (4, 1, 2.0)
    assert (error.max_ulp, error.sum_ulp) == (2 * 0x3F80, 2 * 0x3F80 + 2)
    assert error.sum_abs == 0.0078125 + 2.0 + 0.015625
    assert error.squared_reference == 15.0
    assert error.squared_difference == 0.0078125**2 + 4.0 + 0.015625**2
    assert error.relative_l2 == pytest.approx(math.sqrt((0.0078125**2 + 4.0 + 0.015625**2) / 15.0), rel=1e-15)
    assert (error.equal_share, error.mean_abs, error.mean_ulp) == (0.25, error.sum_abs / 4, error.sum_ulp / 4)


@pytest.mark.parametrize("dtype", [BF16, FP16, FP32, FP64])
def test_zeros_of_both_signs_are_0_ulp_apart_and_not_equal(dtype: torch.dtype) -> None:
    error = compare(torch.tensor([0.0, 0.0], dtype=dtype), torch.tensor([-0.0, 0.0], dtype=dtype))
    assert (error.equal, error.max_ulp, error.sum_abs, error.relative_l2) == (1, 0, 0.0, 0.0)


@pytest.mark.parametrize("dtype", [BF16, FP16, FP32, FP64])
def test_least_denormals_of_both_signs_are_2_ulp_apart(dtype: torch.dtype) -> None:
    sign = 1 << (WIDTH[dtype] - 1)
    error = compare(from_bits([1], dtype), from_bits([sign | 1], dtype))
    assert (error.max_ulp, error.max_abs) == (2, 2 * decode(1, dtype))


def test_fp64_distance_beyond_int64() -> None:
    greatest = torch.finfo(FP64).max
    bits_of_one = 0x3FF << 52
    error = compare(torch.tensor([-greatest, 1.0, 0.0], dtype=FP64), torch.tensor([greatest, -1.0, 1.0], dtype=FP64))
    assert error.max_ulp == 2 * ((0x7FF << 52) - 1) > 2**63
    assert error.sum_ulp == error.max_ulp + 3 * bits_of_one


def test_nonfinite_pairs() -> None:
    nan, inf = math.nan, math.inf
    reference = torch.tensor([nan, nan, inf, inf, inf, 1.0, 2.0])
    candidate = torch.tensor([nan, 1.0, inf, -inf, 1.0, nan, 2.5])
    error = compare(reference, candidate)
    # Equal: NaN with NaN, inf with inf. Excluded: the four other pairs that are not finite.
    assert (error.elements, error.equal, error.excluded, error.nonfinite) == (7, 2, 4, (5, 4))
    assert (error.max_abs, error.sum_abs, error.squared_reference) == (0.5, 0.5, 4.0)
    assert error.mean_abs == 0.5 / 3


def test_nan_payloads_differ() -> None:
    error = compare(from_bits([0x7FC0, 0x7FC0, 0x7FC0], BF16), from_bits([0x7FC0, 0x7FC1, 0xFFC0], BF16))
    assert (error.equal, error.excluded, error.nonfinite) == (1, 2, (3, 3))


def test_nan_of_another_dtype_is_not_equal() -> None:
    error = compare(torch.tensor([math.nan, math.inf], dtype=BF16), torch.tensor([math.nan, math.inf]))
    assert (error.equal, error.excluded, error.nonfinite) == (1, 1, (2, 2))


def test_all_pairs_excluded_is_not_parity() -> None:
    error = compare(torch.zeros(3), torch.full((3,), math.nan))
    assert error.excluded == 3
    assert math.isnan(error.mean_abs)
    assert math.isnan(error.mean_ulp)
    assert math.isnan(error.relative_l2)


def test_overflow_in_the_coarser_dtype_is_one_ulp_past_the_greatest() -> None:
    error = compare(torch.tensor([65504.0], dtype=FP16), torch.tensor([1e6]))
    assert (error.max_ulp, error.max_abs, error.nonfinite) == (1, 1e6 - 65504.0, (0, 0))


def test_rounding_to_the_coarser_dtype_hides_the_finer_digits() -> None:
    error = compare(torch.tensor([1.0], dtype=BF16), torch.tensor([1.001]))
    assert (error.equal, error.max_ulp) == (0, 0)
    assert error.max_abs == abs(float(torch.tensor(1.001)) - 1.0)


def test_bf16_and_its_fp32_copy_are_equal() -> None:
    values = torch.randn(50, generator=torch.Generator().manual_seed(0)).bfloat16()
    assert compare(values, values.float()).equal == 50
    assert compare(values, values.float()).relative_l2 == 0.0


def test_zero_reference_has_infinite_relative_error() -> None:
    assert compare(torch.zeros(2), torch.tensor([0.0, 1e-30])).relative_l2 == math.inf


def test_empty_tensors() -> None:
    error = compare(torch.empty(0, 4), torch.empty(0, 4))
    assert (error.elements, error.equal_share, error.mean_abs, error.mean_ulp, error.relative_l2) == (0, 1, 0, 0, 0)


def test_scalar_and_strided_tensors() -> None:
    assert compare(torch.tensor(1.0), torch.tensor(2.0)).max_ulp == 1 << 23
    a, b = torch.randn(6, 5), torch.randn(6, 5)
    assert compare(a.T, b.T).max_ulp == compare(a, b).max_ulp
    assert compare(a[:, ::2], b[:, ::2]).elements == 18


def test_longer_than_one_chunk() -> None:
    size = (1 << 18) + 3
    reference = torch.ones(size)
    candidate = reference.clone()
    candidate[[0, 1 << 17, size - 1]] = torch.tensor([1.5, 3.0, math.nan])
    error = compare(reference, candidate)
    assert (error.elements, error.equal, error.excluded, error.nonfinite) == (size, size - 3, 1, (0, 1))
    assert (error.max_abs, error.sum_abs, error.squared_difference) == (2.0, 2.5, 4.25)
    assert (error.squared_reference, error.sum_ulp) == (size - 1, (1 << 22) + (3 << 22))


@settings(max_examples=100)
@given(data=st.data())
def test_errors_of_parts_add_up(data: st.DataObject) -> None:
    a, b = data.draw(same_dtype_pair(BF16))
    cut = data.draw(st.integers(0, len(a)))
    x, y = from_bits(a, BF16), from_bits(b, BF16)
    whole = scalar_compare(a, b, BF16, BF16)
    assert_matches(compare(x[:cut], y[:cut]) + compare(x[cut:], y[cut:]), whole)


@settings(max_examples=60)
@given(data=st.data())
def test_distances_are_symmetric(data: st.DataObject) -> None:
    a, b = data.draw(same_dtype_pair(FP32))
    forward, back = (compare(from_bits(a, FP32), from_bits(b, FP32)), compare(from_bits(b, FP32), from_bits(a, FP32)))
    assert (forward.sum_ulp, forward.max_abs, forward.equal, forward.excluded) == (
        back.sum_ulp,
        back.max_abs,
        back.equal,
        back.excluded,
    )
    assert forward.nonfinite == back.nonfinite[::-1]


def test_refuses_other_dtypes_and_shapes() -> None:
    with pytest.raises(TypeError, match=r"candidate is torch\.int64"):
        compare(torch.zeros(2), torch.zeros(2, dtype=torch.int64))
    with pytest.raises(TypeError, match=r"reference is torch\.float8_e4m3fn"):
        compare(torch.zeros(2).to(torch.float8_e4m3fn), torch.zeros(2))
    with pytest.raises(ValueError, match=r"reference \(2, 1\), candidate \(1, 2\)"):
        compare(torch.zeros(2, 1), torch.zeros(1, 2))
