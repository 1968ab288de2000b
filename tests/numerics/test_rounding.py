"""Every sum, product and GEMM against exact fractions rounded to nearest even, bit for bit."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moeparity.numerics.bits import same_bits
from moeparity.numerics.orders import EXPLICIT, Tree, tree
from moeparity.numerics.rounding import add, linear, product, rounded, sum_tree, wide
from tests.numerics import scalar
from tests.numerics.scalar import BF16, DTYPES, FP16, FP32, FP64, number, tensor

DTYPE = st.sampled_from(DTYPES)
# Their exact product lies just above the tie 1 + 2^-8, their fp32 product on it.
FACTORS = (float.fromhex("0x1.001p+0"), float.fromhex("0x1.00eff2p+0"))
START = st.sampled_from([None, 0.0, -0.0, 1.5])
# Sums that stay finite in fp16, and so never meet inf - inf; cancellation and denormals are in there.
SIZES = {"exponents": 9}

Nested = int | list["Nested"]


def order_top_down(order: str, leaves: list[int]) -> Nested:
    """The same trees as `tree`, but split from the root down: evens and odds, or left and right half."""
    if order == "sequential" or len(leaves) == 1:
        return [*leaves] if len(leaves) > 1 else leaves[0]
    if order == "reverse":
        return [*leaves[::-1]]
    half = 1 << (len(leaves) - 1).bit_length() - 1
    parts = (leaves[::2], leaves[1::2]) if order == "fold_hi" else (leaves[:half], leaves[half:])
    return [order_top_down(order, part) for part in parts]


def scalar_sum(values: list[float], node: Nested, accumulate: torch.dtype, start: float | None) -> float:
    def evaluate(node: Nested) -> float:
        if isinstance(node, int):
            return values[node]
        first, *rest = [evaluate(child) for child in node]
        for value in rest:
            first = scalar.add(first, value, accumulate)
        return first

    if start is None:
        return scalar.nearest(evaluate(node), accumulate)
    children = [node] if isinstance(node, int) else node
    for child in children:
        start = scalar.add(start, evaluate(child), accumulate)
    return start


def nested(node: Nested) -> Tree:
    return node if isinstance(node, int) else tuple(nested(child) for child in node)


@pytest.mark.parametrize(("order", "leaf", "accumulate"), list(itertools.product(EXPLICIT, DTYPES, DTYPES)))
@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_sum_of_every_order(order: str, leaf: torch.dtype, accumulate: torch.dtype, data: st.DataObject) -> None:
    leaves = data.draw(st.integers(1, 20))
    row = st.lists(number(leaf, **SIZES), min_size=leaves, max_size=leaves)
    rows = data.draw(st.lists(row, min_size=1, max_size=3))
    start = data.draw(START)
    x = torch.stack([tensor(values, leaf) for values in rows])
    by_hand = order_top_down(order, list(range(leaves)))
    expected = tensor([scalar_sum(values, by_hand, accumulate, start) for values in rows], accumulate)
    assert same_bits(sum_tree(lambda i: x[:, i], tree(order, leaves), accumulate=accumulate, start=start), expected)
    assert same_bits(
        sum_tree(x.t().unbind().__getitem__, tree(order, leaves), accumulate=accumulate, start=start), expected
    )


@st.composite
def any_tree(draw: st.DrawFn, leaves: int) -> Nested:
    """Neighbours bracketed at random, of leaves in random order."""
    nodes: list[Nested] = list(draw(st.permutations(range(leaves))))
    while len(nodes) > 1:
        width = draw(st.integers(2, len(nodes)))
        at = draw(st.integers(0, len(nodes) - width))
        nodes[at : at + width] = [nodes[at : at + width]]
    return nodes[0]


@settings(deadline=None, max_examples=200)
@given(data=st.data(), leaf=DTYPE, accumulate=DTYPE, start=START)
def test_sum_of_any_tree(data: st.DataObject, leaf: torch.dtype, accumulate: torch.dtype, start: float | None) -> None:
    values = data.draw(st.lists(number(leaf, **SIZES), min_size=1, max_size=12))
    shape = data.draw(any_tree(len(values)))
    expected = tensor([scalar_sum(values, shape, accumulate, start)], accumulate)
    total = sum_tree(tensor(values, leaf).unbind().__getitem__, nested(shape), accumulate=accumulate, start=start)
    assert same_bits(total.unsqueeze(0), expected)


@pytest.mark.parametrize("order", ["fold_hi", "fold_lo"])
@settings(deadline=None)
@given(data=st.data(), dtype=DTYPE)
def test_a_padded_leaf_is_a_zero(order: str, data: st.DataObject, dtype: torch.dtype) -> None:
    values = data.draw(st.lists(number(dtype, **SIZES), min_size=1, max_size=20))
    x, width = tensor(values, dtype), 1 << (len(values) - 1).bit_length()
    padded = torch.cat((x, torch.zeros(width - len(values), dtype=dtype)))
    left_out = sum_tree(x.unbind().__getitem__, tree(order, len(values)), accumulate=dtype, start=None)
    added = sum_tree(padded.unbind().__getitem__, tree(order, width), accumulate=dtype, start=None)
    assert torch.equal(left_out, added)
    assert same_bits(left_out, added) or not left_out


@settings(deadline=None, max_examples=300)
@given(data=st.data(), left=DTYPE, right=DTYPE, output=DTYPE)
def test_elementwise(data: st.DataObject, left: torch.dtype, right: torch.dtype, output: torch.dtype) -> None:
    pairs = data.draw(st.lists(st.tuples(number(left, exponents=60), number(right, exponents=60)), min_size=1))
    a, b = tensor([x for x, _ in pairs], left), tensor([y for _, y in pairs], right)
    assert same_bits(product(a, b, output), tensor([scalar.multiply(x, y, output) for x, y in pairs], output))
    assert same_bits(add(a, b, output), tensor([scalar.add(x, y, output) for x, y in pairs], output))


@pytest.mark.parametrize("dtype", [BF16, FP16])
@settings(deadline=None, max_examples=300)
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
@settings(deadline=None, max_examples=20)
@given(data=st.data())
def test_fp64_on_either_side_makes_the_step_fp64(
    left: torch.dtype, right: torch.dtype, output: torch.dtype, data: st.DataObject
) -> None:
    pairs = data.draw(st.lists(st.tuples(number(left, exponents=30), number(right, exponents=30)), min_size=1))

    def kept(exact: Fraction, like: float) -> float:
        step = scalar.nearest(exact, FP64) if exact else like
        return scalar.nearest(step if output == FP64 else scalar.nearest(step, FP32), output)

    a, b = tensor([x for x, _ in pairs], left), tensor([y for _, y in pairs], right)
    products = [kept(Fraction(x) * Fraction(y), x * y) for x, y in pairs]
    sums = [kept(Fraction(x) + Fraction(y), x + y) for x, y in pairs]
    assert same_bits(product(a, b, output), tensor(products, output))
    assert same_bits(add(a, b, output), tensor(sums, output))


@settings(deadline=None, max_examples=60)
@given(data=st.data(), leaf=st.sampled_from([*DTYPES, FP64]), start=START)
def test_sum_in_fp64(data: st.DataObject, leaf: torch.dtype, start: float | None) -> None:
    values = data.draw(st.lists(number(leaf, **SIZES), min_size=1, max_size=9))
    # Python's own floats are fp64.
    expected = values[0] if start is None else start + values[0]
    for value in values[1:]:
        expected += value
    total = sum_tree(
        tensor(values, leaf).unbind().__getitem__, tree("sequential", len(values)), accumulate=FP64, start=start
    )
    assert same_bits(total.unsqueeze(0), tensor([expected], FP64))


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


@pytest.mark.parametrize(("inputs", "output", "bias"), list(itertools.product(DTYPES, DTYPES, [False, True])))
@settings(deadline=None, max_examples=30)
@given(data=st.data())
def test_linear(inputs: torch.dtype, output: torch.dtype, bias: bool, data: st.DataObject) -> None:
    """Operands whose dot products are exact in fp32 in any order, so that only the stated roundings are left."""
    rows, width, columns = (data.draw(st.integers(1, high)) for high in (4, 11, 5))
    value = st.integers(-1023, 1023)  # more bits than bf16 holds
    draw = [data.draw(st.lists(value, min_size=n, max_size=n)) for n in (rows * width, columns * width, columns)]
    x, weight, extra = (torch.tensor(values, dtype=FP32) / 1024 for values in draw)
    x, weight, extra = x.view(rows, width), weight.view(columns, width), rounded(extra * bias, inputs)
    held = [[[scalar.nearest(value, inputs) for value in row] for row in matrix.tolist()] for matrix in (x, weight)]
    added = extra.tolist()
    exact = [[dot(row, held[1][i]) + Fraction(added[i]) for i in range(columns)] for row in held[0]]
    expected = [[scalar.nearest(value, output) for value in row] for row in exact]
    out = linear(x, weight, extra if bias else None, inputs=inputs, output=output)
    # The sign of a zero sum is the kernel's own affair: adding +0 takes it away.
    assert same_bits(out + 0.0, torch.tensor(expected, dtype=torch.float64).to(output))


def dot(a: list[float], b: list[float]) -> Fraction:
    return sum((Fraction(x) * Fraction(y) for x, y in zip(a, b, strict=True)), Fraction(0))
