"""Which choices give the bits that are to be explained: combinations are searched by what they leave unexplained."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import takewhile
from operator import itemgetter
from typing import Final

from moeparity.evidence.explain.built import Built
from moeparity.evidence.explain.faults import PLANTED, fault_places
from moeparity.evidence.explain.plainness import places
from moeparity.evidence.explain.replaced import Choices
from moeparity.evidence.explain.solved import matters, other_numbers, solutions, solved
from moeparity.evidence.explain.tries import MORE, NOTHING, SLOW, SpentError, Tries, children, tried

FOR_SLOW: Final = 0.2
"""Once so much of what may be spent is spent, no further single choice that is slow is tried alone."""
WIDENED: Final = 3
"""Of so many exact combinations it is looked for which others give the same bits."""


def search(tries: Tries, starts: Iterable[Choices]) -> list[Choices]:
    """The combinations that give every bit, none of them with a choice it can do without; empty where none is met.

    Single choices first, then `starts` (combinations to be tried however large), then each number solved for, then
    faults, then single choices that take long; then combinations are built, where it is what they leave unexplained
    that says which is built upon next: faults too are built upon, and none is put on top of another choice. Beside
    what gives every bit its other numbers are tried, and other choices in place of each of its own.
    """
    exact: list[Choices] = []
    pool: list[Choices] = []
    most = tries.limit
    with suppress(SpentError):
        priced = [(max(SLOW, tries.price(choices)), choices) for choices in children(tries, NOTHING)]
        singles = [choices for _, choices in sorted(priced, key=itemgetter(0))]
        quick = sum(price <= SLOW for price, _ in priced)
        slow = takewhile(lambda _: tries.spent < tries.limit * FOR_SLOW, singles[quick:])
        for combinations in (singles[:quick], starts, solved(tries, NOTHING), _faulty(tries), slow):
            pool += tried(tries, combinations, exact)
            if exact:
                break
        else:
            Built(tries=tries, exact=exact).build(pool)
    tries.limit = min(most, tries.spent + MORE)
    with suppress(SpentError):
        smallest = sorted(exact, key=len)[:WIDENED]
        for choices in smallest:
            tried(tries, other_numbers(tries, choices), exact)
        for choices in smallest:
            tried(tries, _exchanged(tries, choices), exact)
    return exact


def _exchanged(tries: Tries, choices: Choices) -> Iterator[Choices]:
    """The combination with one of its choices exchanged for one at another place."""
    for choice in sorted(choices, key=str):
        others = choices - {choice}
        further = (c for c in children(tries, others) if choice[0] not in places(c))
        yield from (c for c in further if tries.price(c) <= SLOW)


def _faulty(tries: Tries) -> Iterator[Choices]:
    """Each fault alone, one that leaves a number open with that solved for; last the experts in another order."""
    kernels, sample = tries.kernels, tries.samples[0]
    suspects = kernels.suspects(sample)
    for node in kernels.replaced.all_nodes:
        for place, number in fault_places(kernels.replaced.plan.graph, node, suspects):
            if number is None:
                yield frozenset([(place, PLANTED)])
            elif matters(tries, NOTHING, place, number):
                yield from solutions(tries, NOTHING, place, number, near=False)
    order = None if suspects else kernels.order(sample)
    if order is not None:
        yield frozenset([(order, PLANTED)])
