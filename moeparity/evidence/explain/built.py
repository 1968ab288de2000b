"""Combinations that are built, one choice after the other, where least is left unexplained."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, combinations, islice, product
from typing import Final

from moeparity.errors import SpecError
from moeparity.evidence.explain.engines import known_choices
from moeparity.evidence.explain.numbers import PLAIN, figures
from moeparity.evidence.explain.plainness import places
from moeparity.evidence.explain.replaced import Choice, Choices, Replaced
from moeparity.evidence.explain.solved import MOST, solved
from moeparity.evidence.explain.tried_faults import with_fault, with_number_of_fault
from moeparity.evidence.explain.tries import NOTHING, PAIR, SLOW, Tries, children, tried
from moeparity.plan.setting import Place

VARIANTS: Final = 3
"""Combinations that differ in values only, of plain numbers and of others, and are built upon before all others have
been; those that leave less than any before aside.
"""
AT_ONCE: Final = 12
"""Of the pairs of which one choice wakes up the other, and of pairs of roundings, so many are tried in each turn."""


def _active_places(replaced: Replaced, choices: Choices) -> set[Place]:
    try:
        plan = replaced.bound(choices)
    except SpecError:
        return set()
    nodes = replaced.searched_nodes
    return {(node.name, name) for bound in plan.distinct for node in nodes for name in bound.active(node)}


@dataclass(slots=True, kw_only=True)
class Built:
    """Combinations of several choices: each is built by adding a choice to the combination that leaves least
    unexplained.

    All sizes take turns. Otherwise large combinations that leave less would keep small ones from ever being built upon.
    Choices that change something alone come first, and those that take effect only beside what is there. Choices that
    change nothing, or differ from earlier ones only in their values, are built upon late.
    """

    tries: Tries
    exact: list[Choices]
    queues: dict[int, list[tuple[bool, float, int, bool, Choices]]] = field(default_factory=dict)
    pushed: set[Choices] = field(default_factory=set)
    variants: Counter[tuple[frozenset[Place], bool]] = field(default_factory=Counter)
    least_at: dict[tuple[frozenset[Place], bool], float] = field(default_factory=dict)
    remainders: set[float] = field(default_factory=set)
    nearest: list[tuple[float, int, int, Choices]] = field(default_factory=list)
    awake: set[Place] = field(init=False)

    def __post_init__(self) -> None:
        """What takes effect without any choice, and what that leaves."""
        self.remainders.add(self.tries.remainder(NOTHING))
        self.awake = _active_places(self.tries.kernels.replaced, NOTHING)

    def build(self, pool: Sequence[Choices]) -> None:
        """Until nothing is left that could give every bit with fewer choices, or everything is spent."""
        for choices in sorted(pool, key=self.tries.remainder):
            self._push(choices)
        singles = [choices for choices in pool if len(choices) == 1]
        woken, rounded_twice = self._woken(sorted(singles, key=_size)), self._rounded_twice(singles)
        while any(self.queues.values()):
            if not self.exact:
                pairs = chain(islice(woken, AT_ONCE), islice(rounded_twice, AT_ONCE))
                for child in tried(self.tries, pairs, self.exact):
                    self._push(child)
            least = min(self.remainders)
            for queue in [self.queues[size] for size in sorted(self.queues) if self.queues[size]]:
                *_, idle, parent = heapq.heappop(queue)
                self._build_upon(parent, idle=idle)
            if not self.exact and min(self.remainders) == least:
                self._look_around()

    def _look_around(self) -> None:
        """If a turn came no nearer, try everything that is one choice away from the nearest combination of all. A
        choice that changed nothing where it was first tried may change something where less is rounded. A value that
        was best alone need not be best beside others.
        """
        if self.nearest:
            *_, parent = heapq.heappop(self.nearest)
            for child in sorted(tried(self.tries, self._beside(parent), self.exact), key=self.tries.remainder):
                self._push(child)

    def _beside(self, parent: Choices) -> Iterator[Choices]:
        replaced, places_of = self.tries.kernels.replaced, dict(parent)
        for place, value in known_choices(replaced, replaced.bound(parent)):
            if place in places_of:
                yield parent - {(place, places_of[place])} | {(place, value)}
            elif len(parent) < MOST and self.tries.reaches((place, value), parent):
                child = parent | {(place, value)}
                yield from [child] if self.tries.price(child) <= SLOW else []

    def _build_upon(self, parent: Choices, *, idle: bool) -> None:
        # Once something is found, only what is smaller is looked for.
        room = min(map(len, self.exact), default=MOST + 1) - len(parent)
        children = [] if room < 2 else tried(self.tries, self._further(parent, idle=idle), self.exact)
        if room > 2 and not idle and not self.exact:
            children += tried(self.tries, self._orders_at_once(parent), self.exact)
        if room > 1 and not idle and not self.exact:
            children += tried(self.tries, with_fault(self.tries, parent), self.exact)
        if room > 0 and idle != _has_numbers(parent) and not self.exact:
            children += tried(self.tries, solved(self.tries, parent), self.exact)
        # Numbers of faults are dear: at once of what is nearest only.
        is_nearest = bool(self.nearest) and parent == self.nearest[0][-1]
        if room > 1 and idle != is_nearest and not self.exact:
            children += tried(self.tries, with_number_of_fault(self.tries, parent), self.exact)
        for child in sorted(children, key=self.tries.remainder):
            self._push(child)
        if not idle:
            self._put(parent, late=True, idle=True)

    def _further(self, parent: Choices, *, idle: bool) -> Iterator[Choices]:
        base = self.tries.remainder(NOTHING)
        for child in children(self.tries, parent):
            ((place, value),) = child - parent
            alone = self.tries.scores.get(frozenset([(place, value)]))
            changes = place not in self.awake or (alone is not None and alone.remainder != base)
            changes = changes and self.tries.reaches((place, value), parent)
            if (changes and self.tries.price(child) <= SLOW) != idle:
                yield child

    def _orders_at_once(self, parent: Choices) -> Iterator[Choices]:
        """Combinations that set two or more orders at once. A sum of which only half of the order is right leaves as
        much as one of which none is, so the search would never build the second order upon the first.
        """
        replaced, at_nodes = self.tries.kernels.replaced, dict[str, dict[Place, list[Choice | None]]]()
        for choice in known_choices(replaced, replaced.bound(parent)):
            (name, attribute), _ = choice
            if choice[0] not in places(parent) and replaced.kind(choice[0]) == "order":
                at_nodes.setdefault(name, {}).setdefault((name, attribute), [None]).append(choice)
        for by_place in at_nodes.values():
            for orders in product(*by_place.values()):
                child = parent.union(filter(None, orders))
                if len(child) > len(parent) + 1 and len(child) <= MOST and self.tries.price(child) <= SLOW:
                    yield child

    def _woken(self, singles: Sequence[Choices]) -> Iterator[Choices]:
        """Single choices with a further one that takes effect only beside it."""
        for parent in singles:
            if _active_places(self.tries.kernels.replaced, parent) - self.awake:
                yield from (
                    child
                    for child in children(self.tries, parent)
                    if any(place not in self.awake for place, _ in child - parent)
                )

    def _rounded_twice(self, singles: Sequence[Choices]) -> Iterator[Choices]:
        """Pairs of roundings at two sites of one node, those first that leave least alone. Another form of the op may
        come nearer than either rounding does, and so would be built upon before them.
        """
        replaced, remainder = self.tries.kernels.replaced, self.tries.remainder
        roundings = [
            single for single in singles if all(replaced.kind(place) == "rounding" for place in places(single))
        ]
        pairs = [
            first | second
            for first, second in combinations(sorted(roundings, key=remainder), 2)
            if len(places(first | second)) == PAIR and len({node for node, _ in places(first | second)}) == 1
        ]
        for pair in sorted(pairs, key=lambda pair: sum(remainder(frozenset([choice])) for choice in pair)):
            if self.tries.price(pair) <= SLOW:
                yield pair

    def _push(self, choices: Choices) -> None:
        remainder = self.tries.remainder(choices)
        if choices not in self.pushed and math.isfinite(remainder):
            self.pushed.add(choices)
            # Numbers of programs are plain. Others make up for what is still missing, and would hide them.
            at = places(choices), all(figures(x) <= PLAIN for _, x in choices if isinstance(x, float))
            behind = self.variants[at] >= VARIANTS and remainder >= self.least_at[at]
            same = remainder in self.remainders or behind
            self.remainders.add(remainder)
            self.variants[at] += 1
            self.least_at[at] = min(remainder, self.least_at.get(at, remainder))
            heapq.heappush(self.nearest, (remainder, len(choices), len(self.pushed), choices))
            self._put(choices, late=same, idle=False)

    def _put(self, choices: Choices, *, late: bool, idle: bool) -> None:
        number = sum(map(len, self.queues.values())) + len(self.pushed)
        entry = (late, self.tries.remainder(choices), number, idle, choices)
        heapq.heappush(self.queues.setdefault(len(choices), []), entry)


def _has_numbers(choices: Choices) -> bool:
    """Whether some number was solved for: it is solved for again with each further choice, and others late."""
    return any(isinstance(value, float) for _, value in choices)


def _size(choices: Choices) -> float:
    """The numbers of a combination, so that small ones come first; words before any."""
    return sum(value for _, value in choices if not isinstance(value, str))
