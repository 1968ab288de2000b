"""Which choices give the bits that are to be explained: combinations are searched by what they leave unexplained."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice, takewhile
from operator import itemgetter
from typing import Final

from moeparity.errors import SpecError
from moeparity.evidence.explain.calls import Kernels, Sample, Score
from moeparity.evidence.explain.faults import PLANTED, fault_places
from moeparity.evidence.explain.numbers import alike, digits, solve
from moeparity.evidence.explain.vocabulary import (
    THETA,
    Choices,
    Replaced,
    listed_choices,
    numbers,
    places,
)
from moeparity.plan.setting import Place

MOST: Final = 6
"""Choices that are put together, at most."""


PLAIN: Final = 2
"""Digits of a plain number."""
VARIANTS: Final = 3
"""Combinations that differ in values only and are built upon before all others have been."""
AT_ONCE: Final = 12
"""Of the pairs of which one choice wakes up the other so many are tried in each turn."""
NOTHING: Final[Choices] = frozenset()
DEAR: Final = 0.1
"""Of what may be spent, so much may be spent on one combination."""
SLOW: Final = 8
"""What takes more, such as a GEMM that is written out, is tried after what takes less."""
FOR_SLOW: Final = 0.2
"""Once so much of what may be spent is spent, no further single choice that is slow is tried alone."""
WIDENED: Final = 3
"""Of so many exact combinations it is looked for which other numbers give the same bits."""
MORE: Final = 256
"""So much may be spent on further exact combinations, however soon the first was found; twice that where a plainer
one may be among them."""
PAIR: Final = 2
"""Choices of a combination that is plain."""
BETTER: Final = 0.95
"""A number that is solved for again has to leave so much less, or the search would follow it into ever finer ones."""


class SpentError(Exception):
    """The kernel calls that a search may make are made."""


UNTRIED: Final = Score()


@dataclass(slots=True, kw_only=True)
class Tries:
    """Combinations of choices on some micro-batches, each tried once; `limit` is how much may be spent on them: a
    kernel call, or a combination that is refused, is 1.
    """

    kernels: Kernels
    samples: Sequence[Sample]
    limit: float
    least: int = 0
    scores: dict[Choices, Score | None] = field(default_factory=dict)
    spent: float = 0.0

    def score(self, choices: Choices) -> Score | None:
        """How near they come; None where an op refuses them, or they take too much. Raises SpentError."""
        if choices not in self.scores:
            if self.spent >= self.limit and len(self.scores) >= self.least:
                raise SpentError
            before = self.kernels.work
            dear = self.price(choices) > self.limit * DEAR
            self.scores[choices] = None if dear else scored(self.kernels, choices, self.samples)
            self.spent += max(1.0, self.kernels.work - before)
        return self.scores[choices]

    def price(self, choices: Choices) -> float:
        """What they take at least, in calls of small kernels; nothing where an op refuses them."""
        try:
            return self.kernels.price(choices, self.samples)
        except SpecError:
            return 0.0

    def remainder(self, choices: Choices) -> float:
        """What they leave unexplained; infinite where they are refused. Raises SpentError."""
        score = self.score(choices)
        return math.inf if score is None else score.remainder

    def exact(self, choices: Choices) -> bool:
        """Whether they give every bit. Raises SpentError."""
        return self.remainder(choices) == 0.0

    @property
    def runs(self) -> bool:
        """Whether the nodes run without any choice."""
        return self.score(NOTHING) is not None

    def ranked(self) -> list[Choices]:
        """Everything that was tried and runs, what leaves least unexplained first, smaller combinations before."""
        tried = [choices for choices, score in self.scores.items() if score is not None and choices]
        return sorted(tried, key=lambda choices: (self.remainder(choices), len(choices), sorted(map(str, choices))))


def scored(kernels: Kernels, choices: Choices, samples: Sequence[Sample]) -> Score | None:
    """How near some choices come on some micro-batches; None where an op refuses them."""
    score = Score()
    for sample in samples:
        trial = kernels.outputs(choices, sample)
        if trial is None:
            return None
        score.add(Score.of(sample.given, trial))
    return score


def search(tries: Tries, starts: Iterable[Choices]) -> list[Choices]:
    """The combinations that give every bit, none of them with a choice it can do without; empty where none is met.

    Single choices first, then `starts` (combinations to be tried however large), then each number solved for, then
    faults, then single choices that take long; then combinations are built, where it is what they leave unexplained
    that says which is built upon next: faults too are built upon, and none is put on top of another choice.
    """
    exact: list[Choices] = []
    pool: list[Choices] = []
    with suppress(SpentError):
        priced = [(max(SLOW, tries.price(choices)), choices) for choices in _children(tries, NOTHING)]
        singles = [choices for _, choices in sorted(priced, key=itemgetter(0))]
        quick = sum(price <= SLOW for price, _ in priced)
        slow = takewhile(lambda _: tries.spent < tries.limit * FOR_SLOW, singles[quick:])
        for combinations in (singles[:quick], starts, _solved(tries, NOTHING), _faulty(tries), slow):
            pool += _tried(tries, combinations, exact)
            if exact:
                break
        else:
            _Built(tries=tries, exact=exact).build(pool)
        for choices in sorted(exact, key=len)[:WIDENED]:
            _tried(tries, _other_numbers(tries, choices), exact)
    return exact


def _faulty(tries: Tries) -> Iterator[Choices]:
    """Each fault alone, one that leaves a number open with that solved for; last the experts in another order."""
    kernels, sample = tries.kernels, tries.samples[0]
    suspects = kernels.suspects(sample)
    for node in kernels.replaced.all_nodes:
        for place, number in fault_places(kernels.replaced.plan.graph, node, suspects):
            if number is None:
                yield frozenset([(place, PLANTED)])
            elif _matters(tries, NOTHING, place, number):
                yield from _solutions(tries, NOTHING, place, number, near=False)
    order = None if suspects else kernels.order(sample)
    if order is not None:
        yield frozenset([(order, PLANTED)])


def _tried(tries: Tries, combinations: Iterable[Choices], exact: list[Choices]) -> list[Choices]:
    """Try them all; what gives every bit goes, without what it can do without, to `exact`."""
    tried = []
    for choices in combinations:
        tried.append(choices)
        if tries.exact(choices):
            if not exact:
                # What else gives every bit is looked not much longer than this was, unless it may be plainer.
                more = 2 * tries.spent + MORE if len(choices) <= PAIR else 4 * tries.spent + 2 * MORE
                tries.limit = min(tries.limit, more)
            smallest = minimal(tries, choices)
            exact += [smallest] if smallest not in exact else []
    return tried


def minimal(tries: Tries, choices: Choices) -> Choices:
    """The combination without choices that it gives every bit without. Raises SpentError."""
    for choice in sorted(choices, key=str):
        fewer = choices - {choice}
        if fewer and tries.exact(fewer):
            return minimal(tries, fewer)
    return choices


def _children(tries: Tries, parent: Choices) -> Iterator[Choices]:
    """The combination with one more listed choice, at a place where it has none; without what is refused alone."""
    replaced, taken = tries.kernels.replaced, places(parent)
    # Where nothing runs as it is, what is refused alone may run beside what makes it run.
    alone = tries.runs
    for choice in listed_choices(replaced, replaced.bound(parent)):
        if choice[0] not in taken and (not alone or tries.scores.get(frozenset([choice]), UNTRIED) is not None):
            yield parent | {choice}


def _solved(tries: Tries, parent: Choices) -> Iterator[Choices]:
    """The combination with one of its numbers, or a further one, solved for."""
    replaced, values = tries.kernels.replaced, dict(parent)
    for place, at in numbers(replaced, replaced.bound(parent)):
        others = frozenset(choice for choice in parent if choice[0] != place)
        if place in values:
            # A word, such as an eps of `config`, stands for the number that is there.
            start = at if isinstance(values[place], str) else float(values[place])
            again = _solutions(tries, others, place, start, near=True)
            yield from (better for better in again if tries.remainder(better) < BETTER * tries.remainder(parent))
        elif len(parent) < MOST and _matters(tries, others, place, at):
            yield from _solutions(tries, others, place, at, near=False)


def _matters(tries: Tries, others: Choices, place: Place, at: float) -> bool:
    """Whether anything depends on a number."""
    return tries.remainder(others | {(place, at * 2 + 1)}) != tries.remainder(others)


def _solutions(tries: Tries, others: Choices, place: Place, at: float, *, near: bool) -> Iterator[Choices]:
    def combination(x: float) -> Choices:
        return others | {(place, x)}

    def remainder(x: float) -> float:
        return tries.remainder(combination(x)) if math.isfinite(x) else math.inf

    candidates = list(solve(remainder, at, near=near, dense=place[1] == THETA))
    exact = [x for x in candidates if remainder(x) == 0.0]
    # The plainest that gives every bit. Else the one that leaves least, whose last figures the choices that are still
    # missing have made, and the plain one that does.
    least = sorted(candidates, key=remainder)
    rounded = [x for x in least if digits(x) <= PLAIN]
    yield from dict.fromkeys(combination(x) for x in exact[-1:] or (*least[:1], *rounded[:1]))


def _other_numbers(tries: Tries, choices: Choices) -> Iterator[Choices]:
    """The ends of the interval in which a number gives the same bits, and the plain numbers in it."""
    for place, value in choices:
        if not isinstance(value, float):
            continue
        others = choices - {(place, value)}

        def exact(x: float, others: Choices = others, place: Place = place) -> bool:
            return tries.exact(others | {(place, x)})

        yield from (others | {(place, x)} for x in alike(exact, value))


def _active_places(replaced: Replaced, choices: Choices) -> set[Place]:
    try:
        plan = replaced.bound(choices)
    except SpecError:
        return set()
    return {(node.name, name) for one in plan.distinct for node in replaced.all_nodes for name in one.active(node)}


@dataclass(slots=True, kw_only=True)
class _Built:
    """Combinations, the next one built upon what leaves least unexplained.

    In turn for each size, since what leaves less with more choices would keep smaller ones from ever being built upon.
    Choices come first that change something alone, or that take effect only beside what is there; what differs from
    earlier ones in values only, or changes nothing, is built upon late.
    """

    tries: Tries
    exact: list[Choices]
    queues: dict[int, list[tuple[bool, float, int, bool, Choices]]] = field(default_factory=dict)
    seen: set[Choices] = field(default_factory=set)
    variants: Counter[frozenset[Place]] = field(default_factory=Counter)
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
        woken = self._woken(sorted((c for c in pool if len(c) == 1), key=_size))
        while any(self.queues.values()):
            if not self.exact:
                for child in _tried(self.tries, islice(woken, AT_ONCE), self.exact):
                    self._push(child)
            least = min(self.remainders)
            for queue in [self.queues[size] for size in sorted(self.queues) if self.queues[size]]:
                *_, idle, parent = heapq.heappop(queue)
                self._build_upon(parent, idle=idle)
            if not self.exact and min(self.remainders) == least:
                self._look_around()

    def _look_around(self) -> None:
        """Where a turn has come no nearer, try everything that is one choice away from the nearest of all: what changed
        nothing where it was tried first may do so where less is rounded, and a value that was best alone need not be so
        beside others.
        """
        if self.nearest:
            *_, parent = heapq.heappop(self.nearest)
            for child in sorted(_tried(self.tries, self._beside(parent), self.exact), key=self.tries.remainder):
                self._push(child)

    def _beside(self, parent: Choices) -> Iterator[Choices]:
        replaced, taken = self.tries.kernels.replaced, dict(parent)
        for place, value in listed_choices(replaced, replaced.bound(parent)):
            if place in taken:
                yield parent - {(place, taken[place])} | {(place, value)}
            elif len(parent) < MOST:
                yield parent | {(place, value)}

    def _build_upon(self, parent: Choices, *, idle: bool) -> None:
        # Once something is found, only what is smaller is looked for.
        room = min(map(len, self.exact), default=MOST + 1) - len(parent)
        children = [] if room < 2 else _tried(self.tries, self._further(parent, idle=idle), self.exact)
        if room > 0 and idle != _has_numbers(parent) and not self.exact:
            children += _tried(self.tries, _solved(self.tries, parent), self.exact)
        for child in sorted(children, key=self.tries.remainder):
            self._push(child)
        if not idle:
            self._put(parent, late=True, idle=True)

    def _further(self, parent: Choices, *, idle: bool) -> Iterator[Choices]:
        base = self.tries.remainder(NOTHING)
        for child in _children(self.tries, parent):
            ((place, value),) = child - parent
            alone = self.tries.scores.get(frozenset([(place, value)]))
            changes = place not in self.awake or (alone is not None and alone.remainder != base)
            if (changes and self.tries.price(child) <= SLOW) != idle:
                yield child

    def _woken(self, singles: Sequence[Choices]) -> Iterator[Choices]:
        """Single choices with a further one that takes effect only beside it."""
        for parent in singles:
            if _active_places(self.tries.kernels.replaced, parent) - self.awake:
                yield from (
                    child
                    for child in _children(self.tries, parent)
                    if any(place not in self.awake for place, _ in child - parent)
                )

    def _push(self, choices: Choices) -> None:
        remainder = self.tries.remainder(choices)
        if choices not in self.seen and math.isfinite(remainder):
            self.seen.add(choices)
            same = remainder in self.remainders or self.variants[places(choices)] >= VARIANTS
            self.remainders.add(remainder)
            self.variants[places(choices)] += 1
            heapq.heappush(self.nearest, (remainder, len(choices), len(self.seen), choices))
            self._put(choices, late=same, idle=False)

    def _put(self, choices: Choices, *, late: bool, idle: bool) -> None:
        number = sum(map(len, self.queues.values())) + len(self.seen)
        entry = (late, self.tries.remainder(choices), number, idle, choices)
        heapq.heappush(self.queues.setdefault(len(choices), []), entry)


def _has_numbers(choices: Choices) -> bool:
    """Whether some number was solved for: it is solved for again with each further choice, and others late."""
    return any(isinstance(value, float) for _, value in choices)


def _size(choices: Choices) -> float:
    """The numbers of a combination, so that small ones come first; words before any."""
    return sum(value for _, value in choices if not isinstance(value, str))
