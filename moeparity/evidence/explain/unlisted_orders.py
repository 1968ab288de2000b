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
from moeparity.evidence.explain.replaced import Choice, Choices
from moeparity.evidence.explain.report import FoundOrder, OrderSearch
from moeparity.evidence.explain.sample import Sample
from moeparity.evidence.explain.score import Score
from moeparity.evidence.explain.tries import NOTHING, scored
from moeparity.numerics.bits import int_view
from moeparity.numerics.orders import OrderError
from moeparity.plan.graph import Node
from moeparity.plan.setting import Place
from moeparity.probe.likely import chain_of, likely_orders, shortest, tree_key
from moeparity.progress import Stop

BESIDE: Final = 12
"""Beside so many combinations of listed choices orders are tried: those that leave least unexplained."""
FITTED: Final = 32
"""An order is sought on so many rows at most, and on half of those that differ."""
ENOUGH: Final = 256
"""Elements with other bits on which an order is sought; no more rows are taken for it once they have so many."""
NEAR: Final = 4
"""Each time twice as many orders were tried, further ones are sought beside so many of those that give most elements:
where two orders are not listed, either gives more of them than any other order of its sum does."""
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
    """One order or several that give every bit of all rows, beside other choices. See `FoundOrder`."""

    choices: Choices
    answers: tuple[FoundOrder, ...]


@dataclass(kw_only=True)
class _Sum:
    """One sum of a node, beside some choices: the rows on which its order is sought, and the others.

    trees: keys of the orders beside it that no file lists, with the places of their sums. share: of the time, relative
    to that of other sums. seconds: what was spent.
    """

    kernels: Kernels
    beside: Choices
    place: Place
    fitted: Sample
    others: Sequence[Sample]
    trees: frozenset[tuple[Place, object]] = frozenset()
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
        return next((count for count in counts if self.score(chain_of(count)) is not None), None)

    @cached_property
    def orders(self) -> Iterator[str]:
        """The orders that are tried."""
        products = self.score("sequential(fma)") is not None
        return likely_orders(self.leaves or UNKNOWN, products=products)

    def choices(self, order: str) -> Choices:
        """The order beside the other choices."""
        return self.beside | {(self.place, order)}

    def score(self, order: str) -> Score | None:
        """How near an order comes on the fitted rows; None where it is refused."""
        try:
            score = scored(self.kernels, self.choices(order), [self.fitted])
        except OrderError:
            return None
        return None if score.refused else score


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
    _near: list[tuple[int, int, _Sum, str]] = field(default_factory=list)

    def search(self) -> OrderSearch:
        """Until all orders are tried, or it is time to stop."""
        begun, most, at_work, pairs_at = time.monotonic(), math.inf, 0.0, 2 * ENOUGH
        sums, waiting, is_empty = self._sums(), list[_Sum](), False
        while self.tried < most and not self.stop.is_due and (waiting or not is_empty):
            # To set up a sum takes time too: as much goes to the orders of those that are set up.
            if not is_empty and 2 * at_work <= time.monotonic() - begun:
                further = next(sums, None)
                is_empty = further is None
                if further is not None:
                    further.seconds = further.share * min((each.turn for each in waiting), default=0.0)
                    waiting.append(further)
            elif waiting:
                at = min(waiting, key=lambda each: each.turn)
                before = at.seconds
                if not self._try_next(at):
                    waiting.remove(at)
                at_work += at.seconds - before
            if self.tried >= pairs_at or (is_empty and not waiting):
                pairs_at = 2 * self.tried
                least = min((each.turn for each in waiting), default=0.0)
                waiting += self._beside_near(least)
            if (self.fits or self.unsure) and most == math.inf:
                most = max(2 * self.tried, self.tried + FURTHER)
        return OrderSearch(
            tried=self.tried,
            seconds=time.monotonic() - begun,
            is_whole=is_empty and not waiting,
            found=tuple(answer for fit in self.fits for answer in fit.answers),
            unsure=tuple(self.unsure),
        )

    def _try_next(self, at: _Sum) -> bool:
        """Try the next order of a sum; whether there was at."""
        begun = time.monotonic()
        order = next(at.orders, None)
        if order is not None:
            self.tried += 1
            score = at.score(order)
            if score is not None and score.exact:
                self._judge(at, order)
            elif score is not None and not at.trees:
                self._near.append((score.equal_elements, -self.tried, at, order))
        at.seconds += time.monotonic() - begun
        return order is not None

    def _beside_near(self, turn: float) -> Iterator[_Sum]:
        """The node's other sums, each to be searched beside one of the orders that come nearest to the values. No order
        is taken twice.
        """
        self._near.sort(reverse=True)
        nearest, self._near = self._near[:NEAR], self._near[NEAR:]
        for _, _, at, order in nearest:
            trees = frozenset({(at.place, tree_key(order, at.leaves))})
            for beside, place in self._places(at.choices(order)):
                if place != at.place:
                    yield replace(at, beside=beside, place=place, trees=trees, share=OF_ORDER, seconds=OF_ORDER * turn)

    def _judge(self, at: _Sum, order: str) -> None:
        """Hold an order that gives the fitted rows against the others."""
        trees = at.trees | {(at.place, tree_key(order, at.leaves))}
        if trees in self._keys or not self._gives(at.choices(order), at.others):
            return
        self._keys.add(trees)
        name = order if at.leaves is None else shortest(order, at.leaves)
        choices = self._smallest(at.choices(name), {(at.place, name)}, [at.fitted, *at.others])
        answers = tuple(
            FoundOrder(
                place=f"{node}:{attribute}",
                order=str(value),
                fitted=_rows(at.fitted),
                others=sum(map(_rows, at.others)),
                deciding=self._deciding(choices - {((node, attribute), value)}, node, at.others),
            )
            for (node, attribute), value in sorted(choices, key=str)
            if (node, attribute) in {place for place, _ in trees}
        )
        if min(answer.deciding for answer in answers) >= CHANCE + math.log2(max(1, self.tried)):
            self.fits.append(Fit(choices=choices, answers=answers))
        else:
            self.unsure += answers

    def _deciding(self, beside: Choices, name: str, others: Sequence[Sample]) -> int:
        """Sums of the other rows of which the choices without the order give other bits. Where matrices are multiplied
        or parts are added, each element is a sum; elsewhere, as in a norm, the elements of a row share one.
        """
        counts = [rows_apart(self.kernels, beside, sample) for sample in others]
        op = next(node.op for node in self.kernels.replaced.all_nodes if node.name == name)
        by_element = op.role.gemm or bool(op.cut.takes_partials)
        return sum(int(count.sum() if by_element else (count > 0).sum()) for count in counts)

    def _gives(self, choices: Choices, samples: Sequence[Sample]) -> bool:
        """Whether choices give every bit."""
        return scored(self.kernels, choices, samples).exact

    def _smallest(self, choices: Choices, order: Choices | set[Choice], samples: Sequence[Sample]) -> Choices:
        """Without the choices beside the order that every bit is given without."""
        for choice in sorted(choices - order, key=str):
            if self._gives(choices - {choice}, samples):
                return self._smallest(choices - {choice}, order, samples)
        return choices

    def _sums(self) -> Iterator[_Sum]:
        """The sums whose orders are searched: each one alone, beside the choices that come nearest to the values, and
        beside each choice without which its node does not have it. Where a sum's terms are the same beside several
        choices, it is searched beside the first. There are none if no row would be left to judge an order by.
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
        axis = self.kernels.replaced.nodes[-1].op.tokens.axis
        real = torch.ones_like(mask) if sample.real is None else sample.real[0]
        rest = [replace(sample, real=(real & ~mask, axis))] if bool((real & ~mask).any()) else []
        return replace(sample, real=(mask, axis)), [*rest, *(each for each in self.samples if each is not sample)]


def _key(port: Tensor) -> tuple[object, ...]:
    """Equal for values with equal bits."""
    return port.dtype, tuple(port.shape), int_view(port.contiguous()).numpy().tobytes()


def _rows(sample: Sample) -> int:
    """How many tokens of a micro-batch are compared."""
    first = sample.compared[0]
    return math.prod(first.shape[:2])
