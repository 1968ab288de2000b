"""The marginal costs of toggles and groups along orders of restoring, of which shares are made."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Iterable, Iterator

from moeparity.search.contrast import Contrast, usable
from moeparity.search.memo import Memo, Mixture, Players
from moeparity.search.tree import Cell, Group, drawn_order, every_order, leaves, prefixes

EXACT = 128
"""All orders are taken if together they pass through at most this many mixtures: those of seven ungrouped players."""
PAIRS = 8
"""How many pairs of orders are drawn if not all are taken."""


def mixtures_needed(tree: Cell) -> int:
    """How many mixtures a ledger asks for with all groups of a tree open. If all orders are taken, shared mixtures
    count once; if orders are drawn, mixtures that they happen to share count for each.
    """
    every = prefixes(tree)
    return every if every <= EXACT else 2 + 2 * PAIRS * (len(leaves(tree)) - 1)


class Ledger:
    """Orders in which toggles go from the reference's to the candidate's value, and what each cell adds along them.

    An order keeps every group of `tree` together. So a group's cost along it takes two mixtures, whatever is inside;
    members take further mixtures only once the group is opened. Costs along one order add up to the whole divergence
    without a remainder, since each mixture ends one step and begins the next. All orders are taken, or `pairs` drawn
    ones, each with its reverse (antithetic).
    """

    def __init__(self, memo: Memo, tree: Cell, pairs: int, seed: int) -> None:
        if frozenset(leaves(tree)) != memo.everything:
            raise ValueError(f"the tree holds {sorted(leaves(tree))}; all players expected: {sorted(memo.players)}")
        if pairs < 1:
            raise ValueError(f"pairs is {pairs}; at least 1 expected")
        self.memo = memo
        self.tree = tree
        self.exact = prefixes(tree) <= EXACT
        self.open_groups: set[Cell] = set()
        self._draws = list(_draws(tree, None if self.exact else pairs, seed))
        self.left_out = 0

    @property
    def orders(self) -> int:
        """The number of orders in use."""
        return sum(len(draw) for draw in self._draws)

    def needs(self, group: Group) -> list[Mixture]:
        """The mixtures between the members of a group, along all orders in use."""
        return [step for order in self._orders() for step in _steps(order, group)]

    def open(self, group: Group) -> bool:
        """Open a group, so that its members get shares; False if that is impossible.

        Orders with a mixture that an op refuses, or whose KL is not finite, are left out from then on, and shares are
        means over the others. If none would be left, the group stays whole.
        """
        self.memo.ask(self.needs(group))
        runs = [tuple(order for order in draw if self._runs(_steps(order, group))) for draw in self._draws]
        draws = [draw for draw in runs if draw]
        if not draws:
            return False
        orders = self.orders
        self._draws = draws
        self.left_out += orders - self.orders
        self.open_groups.add(group)
        return True

    def share(self, cell: Cell) -> Contrast:
        """What a cell adds, as the mean over the orders in use."""
        weights: Counter[Mixture] = Counter()
        for order in self._orders():
            before, after = _ends(order, cell)
            weights[after] += 1
            weights[before] -= 1
        return Contrast(dict(weights), self.orders)

    def standard_error(self, cell: Cell) -> float:
        """The standard error of a share that comes of drawing some orders only: 0 if all were taken, infinite if fewer
        than two pairs were drawn.

        Orders are drawn in pairs, and each pair counts as one draw: it is the linearised ratio estimator over the pairs
        that no op refused (Cochran, Sampling Techniques, 6.4), and where all are whole that of their mean.
        """
        if self.exact:
            return 0.0
        if len(self._draws) < 2:
            return math.inf
        costs = [[self._cost(order, cell) for order in draw] for draw in self._draws]
        mean = math.fsum(itertools.chain(*costs)) / self.orders
        residuals = [math.fsum(cost - mean for cost in draw) for draw in costs]
        count = len(residuals)
        return math.sqrt(math.fsum(r * r for r in residuals) * count / (count - 1)) / self.orders

    def _cost(self, order: Players, cell: Cell) -> float:
        before, after = self.memo.ask(_ends(order, cell))
        assert before is not None and after is not None  # noqa: PT018
        return after.value - before.value

    def _runs(self, steps: Iterable[Mixture]) -> bool:
        return all(usable(outcome) for outcome in self.memo.ask(steps))

    def _orders(self) -> Iterator[Players]:
        return itertools.chain.from_iterable(self._draws)


def _draws(tree: Cell, pairs: int | None, seed: int) -> Iterator[tuple[Players, ...]]:
    """Orders in the units in which they are drawn: single orders, all of them, if `pairs` is None; else pairs of an
    order and its reverse.
    """
    if pairs is None:
        yield from ((order,) for order in every_order(tree))
        return
    for number in range(pairs):
        # Each pair has its own generator, so that trees that differ only inside their groups get the same orders of
        # groups.
        order = drawn_order(tree, random.Random(f"{seed}, {number}"))  # noqa: S311
        yield (order, order[::-1])


def _ends(order: Players, cell: Cell) -> tuple[Mixture, Mixture]:
    """The mixtures before and after a cell, whose players are neighbours in the order."""
    players = leaves(cell)
    start = min(order.index(player) for player in players)
    return frozenset(order[:start]), frozenset(order[: start + len(players)])


def _steps(order: Players, group: Group) -> list[Mixture]:
    """The mixture after each member of a group except the last."""
    return sorted((_ends(order, member)[1] for member in group.members), key=len)[:-1]
