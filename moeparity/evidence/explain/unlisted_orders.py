"""Orders that no file lists, searched in the algebra of orders: found on some rows of a node, judged on all others."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Final

import torch
from torch import Tensor

from moeparity.errors import SpecError
from moeparity.evidence.explain.engines import known_choices
from moeparity.evidence.explain.faults import is_fault
from moeparity.evidence.explain.few_rows import cut, row_by_row, rows_apart
from moeparity.evidence.explain.kernels import Kernels
from moeparity.evidence.explain.plainness import places
from moeparity.evidence.explain.replaced import Choices
from moeparity.evidence.explain.report import FoundOrder, OrderSearch
from moeparity.evidence.explain.sample import Sample
from moeparity.evidence.explain.tries import NOTHING, scored
from moeparity.numerics.bits import int_view
from moeparity.numerics.orders import OrderError
from moeparity.plan.graph import Node
from moeparity.plan.setting import Place
from moeparity.probe.likely import chain_of, likely_orders, shortest, tree_key
from moeparity.progress import Stop

BESIDE: Final = 12
"""Beside so many combinations of listed choices orders are tried: those that leave least unexplained."""
FITTED: Final = 8
"""An order is sought on so many rows at most, and on half of those that differ."""
ENOUGH: Final = 64
"""Elements with other bits on which an order is sought; no more rows are taken for it once they have so many."""
CHANCE: Final = 20
"""By chance an order gives the bits of a sum that others miss half the time at most. What was found is believed where
it does so at this many sums of other rows, and one more for each doubling of the number of orders tried."""
FURTHER: Final = 256
"""So many orders are tried behind the first that fits, or as many again as before it: others may fit too."""
OF_ORDER: Final = 1 / 2
ASIDE: Final = 1 / 8
"""Of the time of a sum beside nothing, so much goes to one beside another choice of its order, and beside others."""
UNKNOWN: Final = 64
"""As of so many values, orders are listed for a sum of which it is not known how many values it has."""


@dataclass(slots=True)
class OrderBudget:
    """How many seconds may be spent on all nodes; one may use half of what is left."""

    seconds: float
    spent: float = 0.0

    def of_node(self, within: Stop) -> Stop:
        """When the search at a node ends; its clock runs from now on. It ends with what it is within, too."""
        return Stop(seconds=(self.seconds - self.spent) / 2, within=within)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """An order that gives every bit of all rows, beside other choices. See `FoundOrder`."""

    choices: Choices
    answer: FoundOrder


@dataclass(kw_only=True)
class _Sum:
    """One sum of a node, beside some listed choices: the rows on which its order is sought, and the others.

    share: of the time, relative to that of other sums. seconds: what was spent.
    """

    kernels: Kernels
    beside: Choices
    place: Place
    fitted: Sample
    others: Sequence[Sample]
    share: float = 1.0
    seconds: float = 0.0

    @property
    def turn(self) -> float:
        """The sum for which this is least is next: each has time by its share, however long one order of it takes."""
        return self.seconds / self.share

    @property
    def node(self) -> Node:
        """The node whose sum it is."""
        return next(node for node in self.kernels.replaced.all_nodes if node.name == self.place[0])

    @cached_property
    def leaves(self) -> int | None:
        """How many values it adds up: a written-out order is refused for any other number. None if no number is taken
        that is small, or that is a size of what its node reads or of its weights.
        """
        values = [self.fitted.values[value] for value in self.node.inputs if value in self.fitted.values]
        sizes = [size for value in values for size in value.shape]
        sizes += [size for ref in self.node.weights.values() for size in ref.shape]
        counts = sorted({*range(2, 10), *(size for size in sizes if size > 1)})
        return next((count for count in counts if self.gives(chain_of(count)) is not None), None)

    @cached_property
    def orders(self) -> Iterator[str]:
        """The orders that are tried."""
        products = self.gives("sequential(fma)") is not None
        return likely_orders(self.leaves or UNKNOWN, products=products)

    def choices(self, order: str) -> Choices:
        """The order beside the other choices."""
        return self.beside | {(self.place, order)}

    def gives(self, order: str) -> bool | None:
        """Whether an order gives every bit of the fitted rows; None where it is refused."""
        try:
            score = scored(self.kernels, self.choices(order), [self.fitted])
        except OrderError:
            return None
        return None if score is None else score.exact

    def gives_others(self, choices: Choices) -> bool:
        """Whether choices give every bit of the other rows."""
        score = scored(self.kernels, choices, self.others)
        return score is not None and score.exact

    @cached_property
    def deciding(self) -> int:
        """Sums of the other rows of which the choices without the order give other bits. Where matrices are multiplied
        or parts are added, each element is a sum; elsewhere, as in a norm, the elements of a row share at.
        """
        counts = [rows_apart(self.kernels, self.beside, sample) for sample in self.others]
        by_element = self.node.op.gemm or bool(self.node.op.takes_partials)
        return sum(int(count.sum() if by_element else (count > 0).sum()) for count in counts)


@dataclass(slots=True, kw_only=True)
class UnlistedOrders:
    """The search at one node: every sum whose order takes effect there has its turn, one order after the other."""

    kernels: Kernels
    ranked: Sequence[Choices]
    samples: Sequence[Sample]
    stop: Stop
    tried: int = 0
    fits: list[Fit] = field(default_factory=list)
    unsure: list[FoundOrder] = field(default_factory=list)
    _keys: set[object] = field(default_factory=set)

    def search(self) -> OrderSearch:
        """Until all orders are tried, or it is time to stop."""
        begun, most, at_work = time.monotonic(), math.inf, 0.0
        sums, waiting, is_empty = self._sums(), list[_Sum](), False
        while self.tried < most and not self.stop.is_due and (waiting or not is_empty):
            # To set up a sum takes time too: as much goes to the orders of those that are set up.
            if not is_empty and 2 * at_work <= time.monotonic() - begun:
                further = next(sums, None)
                is_empty = further is None
                if further is not None:
                    further.seconds = further.share * min((each.turn for each in waiting), default=0.0)
                    waiting.append(further)
                continue
            if waiting:
                at = min(waiting, key=lambda each: each.turn)
                before = at.seconds
                if not self._try_next(at):
                    waiting.remove(at)
                at_work += at.seconds - before
            if (self.fits or self.unsure) and most == math.inf:
                most = max(2 * self.tried, self.tried + FURTHER)
        return OrderSearch(
            tried=self.tried,
            seconds=time.monotonic() - begun,
            is_whole=is_empty and not waiting,
            found=tuple(fit.answer for fit in self.fits),
            unsure=tuple(self.unsure),
        )

    def _try_next(self, at: _Sum) -> bool:
        """Try the next order of a sum; whether there was at."""
        begun = time.monotonic()
        order = next(at.orders, None)
        if order is not None:
            self.tried += 1
            if at.gives(order):
                self._judge(at, order)
        at.seconds += time.monotonic() - begun
        return order is not None

    def _judge(self, at: _Sum, order: str) -> None:
        """Hold an order that gives the fitted rows against the others."""
        key = (at.place, tree_key(order, at.leaves))
        if key in self._keys or not at.gives_others(at.choices(order)):
            return
        self._keys.add(key)
        name = order if at.leaves is None else shortest(order, at.leaves)
        choices = self._smallest(at, at.choices(name))
        answer = FoundOrder(
            place=f"{at.place[0]}:{at.place[1]}",
            order=name,
            fitted=_rows(at.fitted),
            others=sum(map(_rows, at.others)),
            deciding=at.deciding,
        )
        if at.deciding >= CHANCE + math.log2(max(1, self.tried)):
            self.fits.append(Fit(choices=choices, answer=answer))
        else:
            self.unsure.append(answer)

    def _smallest(self, at: _Sum, choices: Choices) -> Choices:
        """Without the choices beside the order that every bit is given without."""
        for choice in sorted(at.beside, key=str):
            fewer = choices - {choice}
            score = scored(self.kernels, fewer, [at.fitted, *at.others])
            if score is not None and score.exact:
                return self._smallest(replace_beside(at, at.beside - {choice}), fewer)
        return choices

    def _sums(self) -> Iterator[_Sum]:
        """Each sum beside nothing, beside what leaves least, and beside each choice that makes a node have it. Of those
        beside which a sum is the same, the first. None if no row would be left to judge an order by.
        """
        met: set[object] = set()
        rows = self._fitted_rows()
        if rows is None:
            return
        sample, mask = rows
        whole, others = self._parted(sample, mask)
        few = cut(sample, mask)
        for beside, place, share in self._beside():
            if self.stop.is_due:
                return
            is_known = (beside, place) in met
            met.add((beside, place))
            key = place, NOTHING if is_known else self._outputs_key(beside, whole)
            if not is_known and key not in met:
                met.add(key)
                is_cut = row_by_row(self.kernels.replaced, beside | {(place, "sequential")}, sample)
                fitted = few if is_cut else whole
                yield _Sum(kernels=self.kernels, beside=beside, place=place, fitted=fitted, others=others, share=share)

    def _beside(self) -> Iterator[tuple[Choices, Place, float]]:
        """Listed choices, the orders in effect beside them, and of how much of the time. Another choice of the same
        sum's order (such as which leaf comes first) leaves as much as none: it comes first too, and beside what leaves
        least.
        """
        replaced, at_once = self.kernels.replaced, {place for _, place in self._places(NOTHING)}
        singles = [frozenset([choice]) for choice in known_choices(replaced, replaced.plan)]
        orders = [single for single in singles if all(replaced.kind(place) == "order" for place, _ in single)]
        yield from ((beside, place, 1.0) for beside, place in self._places(NOTHING))
        for choices in orders:
            yield from ((beside, place, OF_ORDER) for beside, place in self._places(choices))
        for near, order in product(self.ranked[:BESIDE], (NOTHING, *orders)):
            if not places(near) & places(order):
                yield from ((beside, place, ASIDE) for beside, place in self._places(near | order))
        for choices in singles:
            yield from ((beside, place, ASIDE) for beside, place in self._places(choices) if place not in at_once)

    def _outputs_key(self, beside: Choices, sample: Sample) -> object:
        """What choices give, as a key: many change nothing here."""
        trial = self.kernels.outputs(beside, sample)
        return beside if trial is None else tuple(map(_key, trial))

    def _places(self, ranked: Choices) -> Iterator[tuple[Choices, Place]]:
        """The orders in effect beside some choices, each with these choices without it; none beside faults and numbers
        that were solved for, which an order must not make up for.
        """
        replaced = self.kernels.replaced
        if any(is_fault(place) or isinstance(value, float) for place, value in ranked):
            return
        try:
            plans = replaced.bound(ranked).distinct
        except SpecError:
            return
        for node in replaced.searched_nodes:
            active = {name for plan in plans for name in plan.active(node)}
            for attribute in node.attributes:
                if attribute.order and attribute.name in active:
                    place = (node.name, attribute.name)
                    yield frozenset(choice for choice in ranked if choice[0] != place), place

    def _fitted_rows(self) -> tuple[Sample, Tensor] | None:
        """The rows on which orders are sought, as a mask over the tokens of one micro-batch; None if no other row has
        other bits under the plan.
        """
        try:
            counted = [(sample, rows_apart(self.kernels, NOTHING, sample)) for sample in self.samples]
        except SpecError:
            return None
        sample, counts = max(counted, key=lambda pair: int((pair[1] > 0).sum()))
        most = min(FITTED, sum(int((counts > 0).sum()) for _, counts in counted) // 2)
        rows, elements = [], 0
        for row in counts.flatten().argsort(descending=True)[: 2 * most : 2].tolist():
            if elements < ENOUGH:
                rows.append(row)
                elements += int(counts.flatten()[row])
        mask = torch.zeros(counts.numel(), dtype=torch.bool)
        mask[rows] = True
        return (sample, mask.view(counts.shape)) if rows else None

    def _parted(self, sample: Sample, mask: Tensor) -> tuple[Sample, list[Sample]]:
        """A micro-batch at the rows of a mask, and all others that are no padding."""
        axis = self.kernels.replaced.nodes[-1].op.token_axis
        real = torch.ones_like(mask) if sample.real is None else sample.real[0]
        rest = [replace(sample, real=(real & ~mask, axis))] if bool((real & ~mask).any()) else []
        return replace(sample, real=(mask, axis)), [*rest, *(each for each in self.samples if each is not sample)]


def replace_beside(at: _Sum, beside: Choices) -> _Sum:
    """The same sum beside other choices."""
    return _Sum(kernels=at.kernels, beside=beside, place=at.place, fitted=at.fitted, others=at.others)


def _key(port: Tensor) -> tuple[object, ...]:
    """Equal for values with equal bits."""
    return port.dtype, tuple(port.shape), int_view(port.contiguous()).numpy().tobytes()


def _rows(sample: Sample) -> int:
    """How many tokens of a micro-batch are compared."""
    first = sample.compared[0]
    return math.prod(first.shape[:2])
