"""The executor of summation orders: the only place where leaves are added up in a stated order.

Each addition is one elementwise addition of tensors, computed in fp32 (in fp64 where a value or the dtype asked for is
fp64) and rounded to the accumulator's dtype, so that the bits are those of the tree on any device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from moeparity.numerics.bits import int_view
from moeparity.numerics.dtypes import torch_dtype
from moeparity.numerics.fma import exact_sum, fma
from moeparity.numerics.orders import AnyTree, Order, parse
from moeparity.numerics.rounding import add, product, rounded, working
from moeparity.numerics.schedule import LEAVES, START, ZERO, Index, Operand, Schedule, Step, of_order, of_small_tree

Value = torch.Tensor | tuple[torch.Tensor, torch.Tensor]
"""A register: values, or totals and what compensation has kept."""

Fetch = Callable[[Index], torch.Tensor]

AT_ONCE = 1 << 21
"""About so many elements go through the steps together, so that what they leave behind stays in the caches."""


def sum_tree(
    leaf: Callable[[int], torch.Tensor],
    tree: AnyTree,
    *,
    accumulate: torch.dtype,
    start: torch.Tensor | float | None = None,
    times: Callable[[int], torch.Tensor] | None = None,
) -> torch.Tensor:
    """Sum the tensors `leaf(0)`, `leaf(1)`, ... along `tree`, every addition rounded to `accumulate`.

    A leaf is asked for once, when it is added, and enters its addition as it is (round it before, if the engine does).
    `accumulate` is used where the tree states no dtype of its own. `start` is what the root's accumulator holds before
    its first child is added (an output that is zeroed and added into, a bias); None: the first child itself. With
    `times` the leaves are the products `leaf(i) * times(i)`: contracted where the tree says `fma`, else rounded to fp32
    (fp64 where a factor is) before they are added. Returns the dtype the root rounds to. Raises ValueError where the
    tree says `fma` and there are no `times`.
    """

    def one(of: Callable[[int], torch.Tensor]) -> Fetch:
        return lambda index: of(_only(index)).unsqueeze(0)

    plan = of_small_tree(tree, start=start is not None)
    return _Run(one(leaf), None if times is None else one(times), 0, accumulate, start).of(plan)


def sum_axis(
    x: torch.Tensor,
    order: Order,
    axis: int,
    *,
    accumulate: torch.dtype,
    start: torch.Tensor | float | None = None,
    times: torch.Tensor | None = None,
) -> torch.Tensor:
    """Sum `x` [..., n, ...] over `axis` in `order`, as `sum_tree`; with all leaves at hand, many are added at once.

    `times` has `x`'s shape, or broadcasts to it. A `start` tensor has the result's shape, or broadcasts to it. Raises
    OrderError where the order is written out for another number of leaves.
    """
    axis %= x.ndim
    other = None if times is None else times.expand(x.shape)
    plan = of_order(order, x.shape[axis], start=start is not None)
    rows = max(1, AT_ONCE * x.shape[0] // max(1, x.numel()))
    if axis == 0 or rows >= x.shape[0] or (isinstance(start, torch.Tensor) and start.ndim):
        return _sum_whole(plan, x, other, axis, accumulate, start)
    spans = [slice(i, i + rows) for i in range(0, x.shape[0], rows)]
    return torch.cat(
        [_sum_whole(plan, x[s], None if other is None else other[s], axis, accumulate, start) for s in spans]
    )


def _sum_whole(
    plan: Schedule,
    x: torch.Tensor,
    times: torch.Tensor | None,
    axis: int,
    accumulate: torch.dtype,
    start: torch.Tensor | float | None,
) -> torch.Tensor:
    def some(of: torch.Tensor) -> Fetch:
        return lambda index: _at(of, index, axis)

    return _Run(some(x), None if times is None else some(times), axis, accumulate, start).of(plan)


def _only(index: Index) -> int:
    return index.start if isinstance(index, slice) else index[0]


def _at(x: torch.Tensor, index: Index, axis: int) -> torch.Tensor:
    if x.ndim == 0:  # a sum of padded zeros, the same in all places
        return x
    if isinstance(index, slice):
        return x[(slice(None),) * axis + (index,)]
    return x.index_select(axis, torch.tensor(index, device=x.device))


class _Run:
    """One sum: its leaves, and the registers its steps have made so far."""

    def __init__(
        self,
        leaf: Fetch,
        times: Fetch | None,
        axis: int,
        accumulate: torch.dtype,
        start: torch.Tensor | float | None,
    ) -> None:
        self.leaf, self.times, self.axis, self.accumulate = leaf, times, axis, accumulate
        self.start = start.unsqueeze(axis) if isinstance(start, torch.Tensor) and start.ndim else start
        self.registers: list[Value | None] = []
        self.widths: list[int] = []

    def of(self, plan: Schedule) -> torch.Tensor:
        for step in plan.steps:
            dtype = self.accumulate if step.accumulate is None else torch_dtype(step.accumulate)
            value = self.step(step, dtype)
            for register in step.last:
                self.registers[register] = None
            self.registers.append(value)
            self.widths.append(step.width)
        dtype = self.accumulate if plan.dtype is None else torch_dtype(plan.dtype)
        total = self.value(plan.result, dtype)
        assert isinstance(total, torch.Tensor)
        return rounded(total, dtype).squeeze(self.axis)

    def step(self, step: Step, dtype: torch.dtype) -> Value:
        first, *rest = step.operands
        total = self.value(first, dtype)
        if step.kind == "fma":
            assert isinstance(total, torch.Tensor)
            a, b = self.factors(rest[0])
            return rounded(fma(a, b, total.to(working(total.dtype, dtype))), dtype)
        return _STEPS[step.kind](total, [_tensor(self.value(operand, dtype)) for operand in rest], dtype)

    def value(self, operand: Operand, dtype: torch.dtype) -> Value:
        """The values of an operand; `dtype` is that of a constant."""
        if operand.source == LEAVES:
            if self.times is None:
                return self.leaf(operand.index)
            a, b = self.factors(operand)
            return product(a, b, working(a.dtype, b.dtype))
        if operand.source in {ZERO, START}:
            constant = self.start if operand.source == START and self.start is not None else 0.0
            return constant if isinstance(constant, torch.Tensor) else torch.full((), constant, dtype=dtype)
        held, whole = self.registers[operand.source], slice(0, self.widths[operand.source], 1)
        assert held is not None
        if operand.index == whole:
            return held
        return (
            _at(held, operand.index, self.axis)
            if isinstance(held, torch.Tensor)
            else (_at(held[0], operand.index, self.axis), _at(held[1], operand.index, self.axis))
        )

    def factors(self, operand: Operand) -> tuple[torch.Tensor, torch.Tensor]:
        if self.times is None:
            raise ValueError("an order with `fma` contracts products: their second factors are needed, as `times`")
        return self.leaf(operand.index), self.times(operand.index)


def _tensor(value: Value) -> torch.Tensor:
    assert isinstance(value, torch.Tensor)
    return value


def _add(total: Value, rest: Sequence[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    return add(_tensor(total), rest[0], dtype)


def _fused(total: Value, rest: Sequence[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    total = _tensor(total)
    return rounded(exact_sum([total.to(working(total.dtype, dtype)), *rest]), dtype)


def _kahan(total: Value, rest: Sequence[torch.Tensor], dtype: torch.dtype) -> Value:
    """Kahan 1965: what an addition lost is taken off the next value."""
    held, lost = _compensated(total, dtype)
    value = add(rest[0], -lost, dtype)
    grown = add(held, value, dtype)
    return grown, add(add(grown, -held, dtype), -value, dtype)


def _neumaier(total: Value, rest: Sequence[torch.Tensor], dtype: torch.dtype) -> Value:
    """Neumaier 1974: what the additions lost, of whichever was smaller, is added up beside and added at the end."""
    held, lost = _compensated(total, dtype)
    grown = add(held, rest[0], dtype)
    if_held_is_larger = add(add(held, -grown, dtype), rest[0], dtype)
    otherwise = add(add(rest[0], -grown, dtype), held, dtype)
    return grown, add(lost, torch.where(held.abs() >= rest[0].abs(), if_held_is_larger, otherwise), dtype)


def _compensated(total: Value, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    return total if isinstance(total, tuple) else (total, torch.zeros((), dtype=dtype))


def _kahan_total(total: Value, rest: Sequence[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    return _compensated(total, dtype)[0]


def _neumaier_total(total: Value, rest: Sequence[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    return add(*_compensated(total, dtype), dtype)


def _round(total: Value, rest: Sequence[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    return rounded(_tensor(total), dtype)


_STEPS: dict[str, Callable[[Value, Sequence[torch.Tensor], torch.dtype], Value]] = {
    "add": _add,
    "fused": _fused,
    "kahan": _kahan,
    "neumaier": _neumaier,
    "kahan_total": _kahan_total,
    "neumaier_total": _neumaier_total,
    "round": _round,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """What a sum comes to in other arrival orders.

    low, high: the least and the greatest, in the sum's shape; `differing`: the share of sums that are not the same bits
    in all `draws` orders.
    """

    low: torch.Tensor
    high: torch.Tensor
    differing: float
    draws: int


def spread(x: torch.Tensor, axis: int, *, accumulate: torch.dtype, seeds: Sequence[int] = range(16)) -> Spread:
    """The spread of the sum of `x` over `axis` when its leaves arrive in any order: `unordered` with each of the seeds.

    One draw is no result of a sum whose order is open: this is. NaN where a draw is NaN.
    """
    sums = torch.stack([sum_axis(x, parse(f"unordered({seed})"), axis, accumulate=accumulate) for seed in seeds])
    same = (int_view(sums) == int_view(sums[0])).all(0)
    low, high = sums.amin(0), sums.amax(0)
    return Spread(low=low, high=high, differing=1 - same.double().mean().item(), draws=len(seeds))
