"""The executor of summation orders, the only place where leaves are added up in a stated order.

Each addition is one elementwise addition of tensors, computed in fp32 (in fp64 if a value or the result is fp64) and
rounded to the accumulator's dtype, so the bits are those of the tree on any device. Large sums may be compiled
(`compiled.py`): the same steps, the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch

from moeparity.numerics.additions import (
    LEAVES,
    START,
    ZERO,
    AdditionStep,
    Index,
    Operand,
    Schedule,
    of_order,
    of_small_tree,
)
from moeparity.numerics.bits import int_view
from moeparity.numerics.compiled import Executor, evaluate
from moeparity.numerics.dtypes import torch_dtype
from moeparity.numerics.fma import fma
from moeparity.numerics.orders import AnyTree, Level, Order, Sum, leaves_of, parse
from moeparity.numerics.rounding import product, rounded, working
from moeparity.numerics.sum_steps import STEPS, Value, as_tensor

Start = torch.Tensor | float | None
Fetch = Callable[[Index], torch.Tensor]

EAGER = ("fma", "fused")
"""Kinds of steps that are not compiled: Inductor splits `addcmul` into a multiplication and an addition, and exact sums
are integer work, which it does not vectorise.
"""

AT_ONCE = 1 << 21
"""The steps take about so many leaves at a time, so that intermediate values stay in the caches."""


def sum_tree(
    leaf: Callable[[int], torch.Tensor],
    tree: AnyTree,
    *,
    accumulate: torch.dtype,
    start: Start = None,
    times: Callable[[int], torch.Tensor] | None = None,
) -> torch.Tensor:
    """Sum the tensors `leaf(0)`, `leaf(1)`, ... along `tree`, with every addition rounded to `accumulate`.

    A leaf is asked for once, when it is added, and is not rounded before (round it yourself, if the engine does).
    accumulate is used where the tree states no dtype. start: what the root's accumulator holds before its first child
    is added (a zeroed output, a bias); None: the first child itself. times: the leaves are then the products `leaf(i) *
    times(i)`, contracted where the tree says `fma`, else rounded to fp32 (fp64 if a factor is) before they are added.
    The result has the dtype to which the root rounds. Raises ValueError if the tree says `fma` and `times` is None.
    """

    def fetch(of: Callable[[int], torch.Tensor]) -> Fetch:
        return lambda index: of(_only(index)).unsqueeze(0)

    plan = of_small_tree(tree, start=start is not None)
    return _Run(fetch(leaf), None if times is None else fetch(times), 0, accumulate, start).of(plan)


def sum_leaves(
    leaves: Sequence[torch.Tensor],
    tree: AnyTree,
    *,
    accumulate: torch.dtype,
    start: float | None = None,
    executor: Executor = "auto",
) -> torch.Tensor:
    """Sum `leaves`, tensors of one shape and dtype, along `tree` as `sum_tree` does; large sums may be compiled.

    It is fastest if callers pass `at_once` elements of each leaf at a time.
    """
    form, numbers = _form(tree)
    plan = of_small_tree(form.levels[0].explicit, start=start is not None)
    return _AtHand(plan, None, accumulate, start).of([leaves[leaf] for leaf in numbers], form, executor)


def sum_axis(
    x: torch.Tensor,
    order: Order,
    axis: int,
    *,
    accumulate: torch.dtype,
    start: Start = None,
    times: torch.Tensor | None = None,
    executor: Executor = "auto",
) -> torch.Tensor:
    """Sum `x` [..., n, ...] over `axis` in `order`, as `sum_tree`; since all leaves are there, many are added at once.

    times: of `x`'s shape, or broadcast to it. start: a tensor of the result's shape, or broadcast to it. Large sums may
    be compiled. Raises OrderError if the order is written out for another number of leaves.
    """
    axis %= x.ndim
    factors = [x] if times is None else [x, times.expand(x.shape)]
    total = _AtHand(of_order(order, x.shape[axis], start=start is not None), axis, accumulate, start)
    spans = list(at_once(x.shape[0], x.numel() // max(1, x.shape[0])))
    if axis == 0 or len(spans) < 2 or (isinstance(start, torch.Tensor) and start.ndim):
        return total.of(factors, order, executor)
    return torch.cat([total.of([factor[span] for factor in factors], order, executor) for span in spans])


def at_once(sums: int, leaves: int) -> Iterator[slice]:
    """Slices of `sums` sums with `leaves` leaves each, as many at a time as should go through the steps together."""
    size = max(1, AT_ONCE // max(1, leaves))
    return (slice(first, min(first + size, sums)) for first in range(0, sums, size))


@lru_cache(maxsize=1024)
def _form(tree: AnyTree) -> tuple[Order, tuple[int, ...]]:
    """A tree with its leaves renumbered in the order in which they are written, and the old numbers; so all chunks of a
    ring share one form.
    """
    leaf_numbers = tuple(leaves_of(tree))
    numbers = iter(range(len(leaf_numbers)))

    def renumber(node: AnyTree) -> AnyTree:
        if isinstance(node, Sum):
            return replace(node, children=tuple(map(renumber, node.children)))
        return tuple(map(renumber, node)) if isinstance(node, tuple) else None if node is None else next(numbers)

    return Order((Level(name="tree", explicit=renumber(tree)),)), leaf_numbers


@dataclass(frozen=True, slots=True)
class _AtHand:
    """A sum of leaves that are all there: slices along `axis` of one tensor, or with axis None separate tensors."""

    plan: Schedule
    axis: int | None
    accumulate: torch.dtype
    start: Start

    def of(self, factors: list[torch.Tensor], order: Order, executor: Executor) -> torch.Tensor:
        """The sum of the leaves, or of products of two tensors of leaves, in `factors`."""
        if executor == "eager" or isinstance(self.start, torch.Tensor) or not self._compilable():
            return self._run(factors).of(self.plan)
        # Constants are inputs, since a compiler that knows a pad to be 0 would not add it, which leaves -0 unchanged.
        constants = {place: _constant(*place, self.start) for place in self._constants()}

        def function(*tensors: torch.Tensor) -> torch.Tensor:
            run = self._run(tensors[: len(factors)])
            run.constants = dict(zip(constants, tensors[len(factors) :], strict=True))
            return run.of(self.plan)

        return evaluate(
            function,
            [*factors, *constants.values()],
            identity=(order, self.accumulate, self.start is not None),
            steps=len(self.plan.steps),
            axis=self.axis,
            executor=executor,
        )

    def _run(self, factors: Sequence[torch.Tensor]) -> _Run:
        if self.axis is None:
            return _Run(lambda index: factors[_only(index)].unsqueeze(0), None, 0, self.accumulate, self.start)
        leaf, *times = (_slices(factor, self.axis) for factor in factors)
        return _Run(leaf, times[0] if times else None, self.axis, self.accumulate, self.start)

    def _compilable(self) -> bool:
        return len(self.plan.steps) > 0 and not any(step.kind in EAGER for step in self.plan.steps)

    def _constants(self) -> list[tuple[int, torch.dtype]]:
        places = {
            (operand.source, _dtype(step, self.accumulate)): None
            for step in self.plan.steps
            for operand in step.operands
            if operand.source in {ZERO, START}
        }
        return list(places)


def _constant(source: int, dtype: torch.dtype, start: Start) -> torch.Tensor:
    """A padded +0, or the value from which the root's accumulator starts."""
    value = start if source == START and start is not None else 0.0
    return value if isinstance(value, torch.Tensor) else torch.full((), value, dtype=dtype)


def _dtype(of: AdditionStep | Schedule, accumulate: torch.dtype) -> torch.dtype:
    name = of.accumulate if isinstance(of, AdditionStep) else of.dtype
    return accumulate if name is None else torch_dtype(name)


def _slices(x: torch.Tensor, axis: int) -> Fetch:
    return lambda index: _at(x, index, axis)


def _only(index: Index) -> int:
    return index.start if isinstance(index, slice) else index[0]


def _at(x: torch.Tensor, index: Index, axis: int) -> torch.Tensor:
    if x.ndim == 0:  # a sum of padded zeros, the same in all places
        return x
    if isinstance(index, slice):
        return x[(slice(None),) * axis + (index,)]
    return x.index_select(axis, torch.tensor(index, device=x.device))


class _Run:
    """One run of a sum: its leaves, and the registers that its steps have made so far."""

    def __init__(
        self,
        leaf: Fetch,
        times: Fetch | None,
        axis: int,
        accumulate: torch.dtype,
        start: Start,
    ) -> None:
        self.leaf, self.times, self.axis, self.accumulate = leaf, times, axis, accumulate
        self.start = start.unsqueeze(axis) if isinstance(start, torch.Tensor) and start.ndim else start
        self.constants: dict[tuple[int, torch.dtype], torch.Tensor] = {}
        self.registers: list[Value | None] = []
        self.widths: list[int] = []

    def of(self, plan: Schedule) -> torch.Tensor:
        for step in plan.steps:
            value = self.step(step, _dtype(step, self.accumulate))
            for register in step.last:
                self.registers[register] = None
            self.registers.append(value)
            self.widths.append(step.width)
        dtype = _dtype(plan, self.accumulate)
        total = self.value(plan.result, dtype)
        assert isinstance(total, torch.Tensor)
        return rounded(total, dtype).squeeze(self.axis)

    def step(self, step: AdditionStep, dtype: torch.dtype) -> Value:
        first, *operands = step.operands
        total = self.value(first, dtype)
        if step.kind == "fma":
            assert isinstance(total, torch.Tensor)
            a, b = self.factors(operands[0])
            return rounded(fma(a, b, total.to(working(total.dtype, dtype))), dtype)
        return STEPS[step.kind](total, [as_tensor(self.value(operand, dtype)) for operand in operands], dtype)

    def value(self, operand: Operand, dtype: torch.dtype) -> Value:
        """The values of an operand; `dtype` is for constants."""
        if operand.source == LEAVES:
            if self.times is None:
                return self.leaf(operand.index)
            a, b = self.factors(operand)
            return product(a, b, working(a.dtype, b.dtype))
        if operand.source in {ZERO, START}:
            constant = self.constants.get((operand.source, dtype))
            return _constant(operand.source, dtype, self.start) if constant is None else constant
        register, full = self.registers[operand.source], slice(0, self.widths[operand.source], 1)
        assert register is not None
        if operand.index == full:
            return register
        return (
            _at(register, operand.index, self.axis)
            if isinstance(register, torch.Tensor)
            else (_at(register[0], operand.index, self.axis), _at(register[1], operand.index, self.axis))
        )

    def factors(self, operand: Operand) -> tuple[torch.Tensor, torch.Tensor]:
        if self.times is None:
            raise ValueError("an order with `fma` contracts products: their second factors are needed, as `times`")
        return self.leaf(operand.index), self.times(operand.index)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The range of a sum over other orders of arrival.

    low, high: the smallest and the largest value, in the sum's shape. differing: the fraction of sums that do not have
    the same bits in all `draws` orders.
    """

    low: torch.Tensor
    high: torch.Tensor
    differing: float
    draws: int


def spread(x: torch.Tensor, axis: int, *, accumulate: torch.dtype, seeds: Sequence[int] = range(16)) -> Spread:
    """The spread of the sum of `x` over `axis` if its leaves arrive in any order: `unordered` with each of the seeds.

    A single draw is no result of a sum whose order is open. NaN if some draw is NaN.
    """
    sums = torch.stack([sum_axis(x, parse(f"unordered({seed})"), axis, accumulate=accumulate) for seed in seeds])
    equal = (int_view(sums) == int_view(sums[0])).all(0)
    low, high = sums.amin(0), sums.amax(0)
    return Spread(low=low, high=high, differing=1 - equal.double().mean().item(), draws=len(seeds))
