"""The executor of orders against the scalar evaluation of their trees in exact fractions, bit for bit."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moeparity.numerics import summation
from moeparity.numerics.bits import same_bits
from moeparity.numerics.dtypes import torch_dtype
from moeparity.numerics.orders import EXPLICIT, AnyTree, Order, OrderError, Sum, Tree, parse, tree
from moeparity.numerics.summation import spread, sum_axis, sum_tree
from tests.numerics import scalar
from tests.numerics.scalar import BF16, DTYPES, FP16, FP32, FP64, any_number, number, same_numbers, tensor
from tests.numerics.test_orders import orders

DTYPE = st.sampled_from((*DTYPES, FP64))
START = st.sampled_from([None, 0.0, -0.0, 1.5])
# Sums that stay finite in fp16 even where they are squared; cancellation and subnormals are in there.
SIZES = {"exponents": 6}

Typed = tuple[float, torch.dtype]


class Scalar:
    """The sum of one row of numbers along a tree, one IEEE operation at a time."""

    def __init__(
        self, values: Sequence[float], dtype: torch.dtype, accumulate: torch.dtype, times: Sequence[float] | None
    ) -> None:
        self.values, self.dtype, self.accumulate, self.times = values, dtype, accumulate, times

    def of(self, node: AnyTree, start: float | None) -> float:
        if start is not None and (node is None or isinstance(node, int)):
            node = (node,)
        value, _ = self.value(node, start)
        root = Sum(children=()) if not isinstance(node, Sum) else node
        return scalar.cast(value, self.dtype_of(root.round or root.accumulate))

    def dtype_of(self, name: str | None) -> torch.dtype:
        return self.accumulate if name is None else torch_dtype(name)

    def value(self, node: AnyTree, start: float | None = None, like: torch.dtype | None = None) -> Typed:
        if node is None:
            return 0.0, like or self.accumulate
        if isinstance(node, int):
            if self.times is None:
                return self.values[node], self.dtype
            step = FP64 if self.dtype == FP64 else FP32
            return scalar.nearest(scalar.fma(self.values[node], self.times[node], -0.0, step, step), step), step
        node = Sum(children=node) if isinstance(node, tuple) else node
        dtype = self.dtype_of(node.accumulate)
        start_value = (start, dtype) if start is not None else (0.0, dtype) if node.zero else None
        total = {"plain": self.chain, "fused": self.fused, "kahan": self.kahan, "neumaier": self.neumaier}[node.how](
            node, start_value, dtype
        )
        return (
            total
            if node.round is None
            else (scalar.cast(total[0], self.dtype_of(node.round)), self.dtype_of(node.round))
        )

    def chain(self, node: Sum, total: Typed | None, dtype: torch.dtype) -> Typed:
        for child in node.children:
            if total is None:
                total = self.value(child, like=dtype)
            elif node.fma and isinstance(child, int):
                assert self.times is not None
                step = self.step(dtype, total[1], self.dtype)
                total = scalar.fma(self.values[child], self.times[child], total[0], dtype, step), dtype
            else:
                total = self.add(total, self.value(child, like=dtype), dtype)
        assert total is not None
        return total

    def fused(self, node: Sum, total: Typed | None, dtype: torch.dtype) -> Typed:
        terms = [self.value(child, like=dtype) for child in node.children]
        for i in range(0, len(terms), node.width):
            group = [*([] if total is None else [total]), *terms[i : i + node.width]]
            step = self.step(dtype, *(kind for _, kind in group))
            total = group[0] if len(group) == 1 else (scalar.total([x for x, _ in group], dtype, step), dtype)
        assert total is not None
        return total

    def kahan(self, node: Sum, start: Typed | None, dtype: torch.dtype) -> Typed:
        children = [self.value(child, like=dtype) for child in node.children]
        total, terms = (children[0], children[1:]) if start is None else (start, children)
        lost = 0.0
        for value in terms:
            y = self.add(value, (-lost, dtype), dtype)
            grown = self.add(total, y, dtype)
            lost = self.add(self.add(grown, (-total[0], total[1]), dtype), (-y[0], dtype), dtype)[0]
            total = grown
        return total

    def neumaier(self, node: Sum, start: Typed | None, dtype: torch.dtype) -> Typed:
        children = [self.value(child, like=dtype) for child in node.children]
        total, terms = (children[0], children[1:]) if start is None else (start, children)
        lost: Typed = (0.0, dtype)
        for value in terms:
            grown = self.add(total, value, dtype)
            large, small = (total, value) if abs(total[0]) >= abs(value[0]) else (value, total)
            error = self.add(self.add(large, (-grown[0], dtype), dtype), small, dtype)
            total, lost = grown, self.add(lost, error, dtype)
        return self.add(total, lost, dtype) if terms else total

    def add(self, a: Typed, b: Typed, dtype: torch.dtype) -> Typed:
        return scalar.add(a[0], b[0], dtype, self.step(dtype, a[1], b[1])), dtype

    def step(self, *dtypes: torch.dtype) -> torch.dtype:
        return FP64 if FP64 in dtypes else FP32


def both_ways(
    x: torch.Tensor,
    order: Order,
    accumulate: torch.dtype,
    start: float | None = None,
    times: torch.Tensor | None = None,
) -> torch.Tensor:
    """The sum of rows, all leaves at once and leaf by leaf, along the last axis and the first."""
    result = sum_axis(x, order, -1, accumulate=accumulate, start=start, times=times)
    plan = tree(order, x.shape[-1], rooted=start is not None)
    weight = None if times is None else times.t().unbind().__getitem__
    by_tree = sum_tree(x.t().unbind().__getitem__, plan, accumulate=accumulate, start=start, times=weight)
    by_chunks = sum_axis(
        x.t().contiguous(), order, 0, accumulate=accumulate, start=start, times=None if times is None else times.t()
    )
    assert same_numbers(result, by_tree)
    assert same_numbers(result, by_chunks)
    return result


def expected(
    rows: list[list[float]],
    order: Order,
    leaf: torch.dtype,
    accumulate: torch.dtype,
    start: float | None,
    times: list[list[float]] | None = None,
) -> torch.Tensor:
    plan = tree(order, len(rows[0]), rooted=start is not None)
    by_hand = [
        Scalar(row, leaf, accumulate, None if times is None else times[i]).of(plan, start) for i, row in enumerate(rows)
    ]
    last = order.levels[-1]
    name = last.round or last.accumulate
    return tensor(by_hand, accumulate if name is None else torch_dtype(name))


@settings(max_examples=150)
@given(data=st.data(), leaf=DTYPE, accumulate=DTYPE, start=START)
def test_any_order_of_ordinary_numbers(
    data: st.DataObject, leaf: torch.dtype, accumulate: torch.dtype, start: float | None
) -> None:
    order = data.draw(orders())
    n = order.leaves or data.draw(st.integers(1, 24))
    row = st.lists(number(leaf, **SIZES), min_size=n, max_size=n)
    rows = data.draw(st.lists(row, min_size=1, max_size=3))
    times = data.draw(st.lists(row, min_size=len(rows), max_size=len(rows))) if order.fma else None
    x, y = torch.stack([tensor(r, leaf) for r in rows]), None
    if times is not None:
        y = torch.stack([tensor(r, leaf) for r in times])
    assert same_bits(both_ways(x, order, accumulate, start, y), expected(rows, order, leaf, accumulate, start, times))


@settings(max_examples=150)
@given(data=st.data(), leaf=DTYPE, accumulate=DTYPE)
def test_any_order_of_any_numbers(data: st.DataObject, leaf: torch.dtype, accumulate: torch.dtype) -> None:
    """Subnormal, infinite, NaN and signed zeros; sums that overflow."""
    order = data.draw(orders(products=False, fused=leaf != FP64))
    n = order.leaves or data.draw(st.integers(1, 24))
    row = data.draw(st.lists(any_number(leaf), min_size=n, max_size=n))
    x = tensor(row, leaf).unsqueeze(0)
    assert same_numbers(both_ways(x, order, accumulate), expected([row], order, leaf, accumulate, None))


@pytest.mark.parametrize(("order", "leaf", "accumulate"), list(itertools.product(EXPLICIT, DTYPES, DTYPES)))
@settings(max_examples=5)
@given(data=st.data())
def test_every_plain_order(order: str, leaf: torch.dtype, accumulate: torch.dtype, data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 20))
    row = data.draw(st.lists(number(leaf, **SIZES), min_size=n, max_size=n))
    start = data.draw(START)
    x = tensor(row, leaf).unsqueeze(0)
    assert same_bits(
        both_ways(x, parse(order), accumulate, start), expected([row], parse(order), leaf, accumulate, start)
    )


@st.composite
def any_tree(draw: st.DrawFn, leaves: int) -> Tree:
    """Neighbours bracketed at random, of leaves in random order."""
    nodes: list[Tree] = list(draw(st.permutations(range(leaves))))
    while len(nodes) > 1:
        width = draw(st.integers(2, len(nodes)))
        at = draw(st.integers(0, len(nodes) - width))
        nodes[at : at + width] = [tuple(nodes[at : at + width])]
    return nodes[0]


@settings(max_examples=60)
@given(data=st.data(), leaf=DTYPE, accumulate=DTYPE, start=START)
def test_any_tree(data: st.DataObject, leaf: torch.dtype, accumulate: torch.dtype, start: float | None) -> None:
    values = data.draw(st.lists(number(leaf, **SIZES), min_size=1, max_size=12))
    plan = data.draw(any_tree(len(values)))
    by_hand = tensor([Scalar(values, leaf, accumulate, None).of(plan, start)], accumulate)
    total = sum_tree(tensor(values, leaf).unbind().__getitem__, plan, accumulate=accumulate, start=start)
    assert same_bits(total.unsqueeze(0), by_hand)


def test_leaves_are_asked_for_once_and_when_they_are_added() -> None:
    requests: list[int] = []

    def leaf(i: int) -> torch.Tensor:
        requests.append(i)
        return torch.tensor(float(i))

    assert sum_tree(leaf, ((2, 0), (3, 1)), accumulate=FP32).item() == 6
    assert requests == [2, 0, 3, 1]


def test_a_fold_adds_its_padded_zeros_and_skip_leaves_them_out() -> None:
    x = torch.full((2, 3), -0.0)
    assert same_bits(sum_axis(x, parse("fold_hi"), 1, accumulate=FP32), torch.zeros(2))
    assert same_bits(sum_axis(x, parse("fold_hi(skip)"), 1, accumulate=FP32), x[:, 0])
    # No pad in four.
    assert same_bits(sum_axis(torch.full((2, 4), -0.0), parse("fold_lo"), 1, accumulate=FP32), x[:, 0])


@pytest.mark.parametrize("order", ["threads(3) | sequential(zero)", "threads(3) | cascade(lanes=1, accumulators=3)"])
@pytest.mark.parametrize("start", [None, 1.0])
def test_sums_of_nothing_but_padded_zeros_add_nothing(order: str, start: float | None) -> None:
    x = torch.tensor([[2.0], [-0.0]])
    result = sum_axis(x, parse(order), 1, accumulate=FP32, start=start)
    assert same_bits(result, torch.tensor([2.0, 0.0]) + (start or 0.0))
    two = sum_axis(x, parse("threads(4) | fold_lo(2, round=bf16) | sequential(neumaier)"), 0, accumulate=FP32)
    assert two.tolist() == [2.0]


def test_an_accumulator_that_starts_from_zero_has_no_negative_zero() -> None:
    x = torch.full((5,), -0.0)
    assert same_bits(sum_axis(x, parse("sequential(zero)"), 0, accumulate=FP32), torch.tensor(0.0))
    assert same_bits(sum_axis(x, parse("sequential"), 0, accumulate=FP32), torch.tensor(-0.0))
    assert same_bits(sum_axis(x, parse("fused(2)"), 0, accumulate=FP32), torch.tensor(-0.0))


def test_levels_round_where_they_say() -> None:
    # Two nodes of two ranks: fp32 inside a node, its sum rounded to bf16, then fp32 across (DeepEP internode).
    x = torch.tensor([1.0, 2.0**-9, 2.0**-9, 2.0**-9], dtype=BF16)
    apart = sum_axis(x, parse("blocks(2, round=bf16) | sequential"), 0, accumulate=FP32)
    assert apart.item() == 1 + 2.0**-8
    assert sum_axis(x, parse("blocks(2) | sequential"), 0, accumulate=FP32).item() == 1 + 3 * 2.0**-9
    inside = sum_axis(x, parse("sequential(accumulate=bf16)"), 0, accumulate=FP32)
    assert (inside.dtype, inside.item()) == (BF16, 1.0)


def test_compensation_keeps_what_plain_sums_lose() -> None:
    x = torch.tensor([1.0, 1e8, 1.0, -1e8])
    result = {o: sum_axis(x, parse(o), 0, accumulate=FP32).item() for o in ("sequential", "sequential(neumaier)")}
    assert result == {"sequential": 0.0, "sequential(neumaier)": 2.0}
    tenth = torch.full((10_000,), 0.1)
    exact = torch.tensor(0.1).double().item() * 10_000
    assert abs(sum_axis(tenth, parse("sequential(kahan)"), 0, accumulate=FP32).item() - exact) < 1e-4
    assert abs(sum_axis(tenth, parse("sequential"), 0, accumulate=FP32).item() - exact) > 1e-2


@pytest.mark.parametrize("shape", [(4, 7), (7,), (2, 3, 7)])
def test_a_start_tensor_is_added_into(shape: tuple[int, ...]) -> None:
    x, bias = torch.randn(shape), torch.randn(shape[:-1])
    joined_row = torch.cat([bias.unsqueeze(-1), x], -1)
    result = sum_axis(x, parse("sequential"), -1, accumulate=FP32, start=bias)
    assert same_bits(result, sum_axis(joined_row, parse("sequential"), -1, accumulate=FP32))


def test_a_start_belongs_to_the_last_level_even_where_that_has_one_value() -> None:
    # One block, whose sum is 2^-24 + 2^-24 = 2^-23: added to 1 it counts, its parts do not.
    x = torch.tensor([2.0**-24, 2.0**-24])
    assert sum_axis(x, parse("blocks(4) | sequential"), 0, accumulate=FP32, start=1.0).item() == 1 + 2.0**-23
    assert sum_axis(x, parse("sequential"), 0, accumulate=FP32, start=1.0).item() == 1.0


def test_the_order_of_a_large_sum_takes_few_steps() -> None:
    from moeparity.numerics.additions import of_order

    assert len(of_order(parse("fold_hi"), 4096, start=False).steps) == 12
    assert (
        len(of_order(parse("threads(128, vector=8) | fold_hi(32) | sequential"), 4096, start=False).steps) == 31 + 5 + 3
    )


@pytest.mark.parametrize("order", ["threads(4, vector=2) | fold_lo", "sequential(fma)"])
def test_rows_taken_a_few_at_a_time_give_the_same_bits(monkeypatch: pytest.MonkeyPatch, order: str) -> None:
    x, weight = torch.randn(2, 3, 5, 40).unbind()
    times = weight[:1] if "fma" in order else None
    for axis in (1, 2):
        plain = sum_axis(x, parse(order), axis, accumulate=FP32, start=0.0, times=times)
        monkeypatch.setattr(summation, "AT_ONCE", 1)
        result = sum_axis(x, parse(order), axis, accumulate=FP32, start=0.0, times=times)
        monkeypatch.undo()
        assert same_bits(result, plain)


def test_the_spread_of_arrival_orders() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 64, generator=generator)
    result = spread(x, -1, accumulate=BF16, seeds=range(8))
    draws = [sum_axis(x, parse(f"unordered({seed})"), -1, accumulate=BF16) for seed in range(8)]
    assert same_bits(result.low, torch.stack(draws).min(0).values)
    assert same_bits(result.high, torch.stack(draws).max(0).values)
    assert result.draws == 8
    assert result.differing == (result.low != result.high).double().mean().item() > 0.5
    joined_row = spread(torch.ones(3, 64), -1, accumulate=FP32)
    assert (joined_row.differing, joined_row.draws) == (0.0, 16)


def test_what_no_order_can_add_is_refused() -> None:
    with pytest.raises(ValueError, match="second factors are needed, as `times`"):
        sum_axis(torch.ones(3), parse("sequential(fma)"), 0, accumulate=FP32)
    with pytest.raises(ValueError, match="a sum of 0 leaves has no tree"):
        sum_axis(torch.ones(3, 0), parse("fold_hi"), 1, accumulate=FP32)
    with pytest.raises(OrderError, match="adds up 2 values, and there are 3"):
        sum_axis(torch.ones(3), parse("tree(1+0)"), 0, accumulate=FP32)


def test_nan_and_infinity_pass_through() -> None:
    rows = torch.tensor([[math.inf, 1.0, -1.0], [math.inf, -math.inf, 1.0], [math.nan, 0.0, 0.0]], dtype=FP16)
    for order in ("sequential", "fold_hi", "fused(2)", "lanes(2) | sequential"):
        result = sum_axis(rows, parse(order), 1, accumulate=FP32)
        assert same_numbers(result, torch.tensor([math.inf, math.nan, math.nan]))
