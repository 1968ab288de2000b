"""Every addition, product and GEMM against exact fractions rounded to nearest even, bit for bit."""

from __future__ import annotations

import itertools
import math
import struct
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moeparity.numerics.bits import same_bits
from moeparity.numerics.dtypes import TowardZero, site_dtype
from moeparity.numerics.rounding import add, linear, product, rounded, stored, wide
from tests.numerics import scalar
from tests.numerics.scalar import BF16, DTYPES, FP16, FP32, FP64, number, tensor

DTYPE = st.sampled_from(DTYPES)
# Their exact product lies just above the tie 1 + 2^-8, their fp32 product on it.
FACTORS = (float.fromhex("0x1.001p+0"), float.fromhex("0x1.00eff2p+0"))


@settings(max_examples=300)
@given(data=st.data(), left=DTYPE, right=DTYPE, output=DTYPE)
def test_elementwise(data: st.DataObject, left: torch.dtype, right: torch.dtype, output: torch.dtype) -> None:
    pairs = data.draw(st.lists(st.tuples(number(left, exponents=60), number(right, exponents=60)), min_size=1))
    a, b = tensor([x for x, _ in pairs], left), tensor([y for _, y in pairs], right)
    assert same_bits(product(a, b, output), tensor([scalar.multiply(x, y, output) for x, y in pairs], output))
    assert same_bits(add(a, b, output), tensor([scalar.add(x, y, output) for x, y in pairs], output))


@pytest.mark.parametrize("dtype", [BF16, FP16])
@settings(max_examples=300)
@given(data=st.data())
def test_sixteen_bit_pairs_are_rounded_once(dtype: torch.dtype, data: st.DataObject) -> None:
    value = number(dtype, exponents=40).filter(bool)
    pairs = data.draw(st.lists(st.tuples(value, value), min_size=1).filter(lambda pairs: all(x + y for x, y in pairs)))
    exact = [(Fraction(x) * Fraction(y), Fraction(x) + Fraction(y)) for x, y in pairs]
    a, b = tensor([x for x, _ in pairs], dtype), tensor([y for _, y in pairs], dtype)
    assert same_bits(product(a, b, dtype), tensor([scalar.nearest(p, dtype) for p, _ in exact], dtype))
    assert same_bits(add(a, b, dtype), tensor([scalar.nearest(s, dtype) for _, s in exact], dtype))


def test_an_fp32_operand_is_rounded_twice() -> None:
    # In fp32 the small addend is lost, which leaves a tie that goes to even; rounded once it would go up.
    tie, crumb = torch.tensor(1 + 2.0**-8), torch.tensor(2.0**-40)
    assert scalar.nearest(Fraction(1 + 2.0**-8) + Fraction(2.0**-40), BF16) == 1 + 2.0**-7
    assert add(tie, crumb, BF16).item() == 1.0
    x, y = FACTORS
    assert scalar.nearest(Fraction(x) * Fraction(y), BF16) == 1 + 2.0**-7
    assert product(torch.tensor(x), torch.tensor(y), BF16).item() == 1.0


@pytest.mark.parametrize(
    ("left", "right", "output"), [t for t in itertools.product((*DTYPES, FP64), repeat=3) if FP64 in t]
)
@settings(max_examples=20)
@given(data=st.data())
def test_fp64_on_either_side_makes_the_step_fp64(
    left: torch.dtype, right: torch.dtype, output: torch.dtype, data: st.DataObject
) -> None:
    pairs = data.draw(st.lists(st.tuples(number(left, exponents=30), number(right, exponents=30)), min_size=1))

    def nearest(exact: Fraction, like: float) -> float:
        step = scalar.nearest(exact, FP64) if exact else like
        return scalar.nearest(step if output == FP64 else scalar.nearest(step, FP32), output)

    a, b = tensor([x for x, _ in pairs], left), tensor([y for _, y in pairs], right)
    products = [nearest(Fraction(x) * Fraction(y), x * y) for x, y in pairs]
    sums = [nearest(Fraction(x) + Fraction(y), x + y) for x, y in pairs]
    assert same_bits(product(a, b, output), tensor(products, output))
    assert same_bits(add(a, b, output), tensor(sums, output))


@pytest.mark.parametrize(("inputs", "output"), [(FP64, FP64), (FP64, FP32), (FP64, BF16), (FP32, FP64), (BF16, FP64)])
def test_linear_with_fp64(inputs: torch.dtype, output: torch.dtype) -> None:
    # 1 + 2^-30 does not fit into fp32: only an fp64 accumulator keeps it.
    x = torch.tensor([[1.0, 2.0**-15]], dtype=BF16)
    out = linear(x, x.clone(), torch.tensor([2.0**-31], dtype=BF16), inputs=inputs, output=output)
    assert same_bits(out, torch.tensor([[1 + 2.0**-30 + 2.0**-31]], dtype=FP64).to(output))
    assert out.dtype == output


def test_rounded_and_wide_leave_alone_what_fits() -> None:
    half, double = torch.ones(3, dtype=FP16), torch.ones(3, dtype=torch.float64)
    assert rounded(half, FP16) is half
    assert wide(double) is double
    assert same_bits(wide(half), torch.ones(3))


def leading_bits(value: float) -> float:
    """The bf16 number of the first 16 bits of `value` in fp32, the bytes of which are written down."""
    return float(struct.unpack(">f", struct.pack(">f", value)[:2] + bytes(2))[0])


@settings(max_examples=300)
@given(data=st.data())
def test_toward_zero_keeps_the_leading_bits(data: st.DataObject) -> None:
    values = data.draw(st.lists(st.one_of(number(FP32, exponents=120), st.floats(width=32)), min_size=1))
    finite = [value for value in values if not math.isnan(value)]
    x, expected = torch.tensor(finite, dtype=FP32), torch.tensor([leading_bits(value) for value in finite])
    assert same_bits(rounded(x, site_dtype("bf16_rz")), expected.to(BF16))
    assert same_bits(product(x, torch.ones(1), TowardZero(BF16)), expected.to(BF16))
    assert stored(site_dtype("bf16_rz")) == stored(BF16) == BF16


def test_toward_zero_of_what_is_no_fp32() -> None:
    """bf16 is left alone; of fp64 no rounding to fp32 comes between, which would carry into the leading bits."""
    half = torch.tensor([1.0, -0.0])
    assert rounded(half.to(BF16), TowardZero(BF16)).dtype == BF16
    below = torch.tensor([2.0 - 2.0**-40, -(1 + 2.0**-7 - 2.0**-50), 2.0**-140, -0.0], dtype=FP64)
    expected = torch.tensor([2 - 2.0**-7, -1.0, 0.0, -0.0], dtype=FP64).to(BF16)
    assert same_bits(rounded(below, TowardZero(BF16)), expected)


@pytest.mark.parametrize(("inputs", "output", "bias"), list(itertools.product(DTYPES, DTYPES, [False, True])))
@settings(max_examples=30)
@given(data=st.data())
def test_linear(inputs: torch.dtype, output: torch.dtype, bias: bool, data: st.DataObject) -> None:
    """Operands whose dot products are exact in fp32 in any order, so that only the stated roundings are left."""
    rows, width, columns = (data.draw(st.integers(1, high)) for high in (4, 11, 5))
    value = st.integers(-1023, 1023)  # more bits than bf16 holds
    draw = [data.draw(st.lists(value, min_size=n, max_size=n)) for n in (rows * width, columns * width, columns)]
    x, weight, extra = (torch.tensor(values, dtype=FP32) / 1024 for values in draw)
    x, weight, extra = x.view(rows, width), weight.view(columns, width), rounded(extra * bias, inputs)
    operands = [[[scalar.nearest(value, inputs) for value in row] for row in matrix.tolist()] for matrix in (x, weight)]
    biases = extra.tolist()
    exact = [[dot(row, operands[1][i]) + Fraction(biases[i]) for i in range(columns)] for row in operands[0]]
    expected = [[scalar.nearest(value, output) for value in row] for row in exact]
    out = linear(x, weight, extra if bias else None, inputs=inputs, output=output)
    # The sign of a zero sum is the kernel's own affair: adding +0 takes it away.
    assert same_bits(out + 0.0, torch.tensor(expected, dtype=torch.float64).to(output))


def dot(a: list[float], b: list[float]) -> Fraction:
    return sum((Fraction(x) * Fraction(y) for x, y in zip(a, b, strict=True)), Fraction(0))
