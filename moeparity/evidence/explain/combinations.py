"""Which choices give the bits that are to be explained. The search goes by what each combination leaves unexplained."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain, takewhile
from operator import itemgetter
from typing import Final

from moeparity.evidence.explain.built import Built
from moeparity.evidence.explain.plainness import places
from moeparity.evidence.explain.replaced import Choices
from moeparity.evidence.explain.solved import other_numbers, solved
from moeparity.evidence.explain.tried_faults import of_suspects, with_fault, with_number_of_fault
from moeparity.evidence.explain.tries import MORE, NOTHING, SLOW, SpentError, Tries, children, tried

FOR_SLOW: Final = 0.2
"""Once so much of what may be spent is spent, no further single choice that is slow is tried alone."""
WIDENED: Final = 3
"""Of so many exact combinations it is looked for which others give the same bits."""


def search(tries: Tries, starts: Iterable[Choices]) -> list[Choices]:
    """The combinations that give every bit. None of them has a choice that it can do without. Empty if there is none.

    The order of the search: single choices; faults of an expert that the values point to; `starts` (combinations to be
    tried however large they are); each number that can be solved for; faults; single choices that take long; then
    combinations of choices and faults, always built upon what leaves least unexplained. Once a combination gives every
    bit, its numbers are tried with other values, and other choices in place of each of its own.
    """
    exact: list[Choices] = []
    pool: list[Choices] = []
    most = tries.limit
    with suppress(SpentError):
        priced = [(max(SLOW, tries.price(choices)), choices) for choices in children(tries, NOTHING)]
        singles = [choices for _, choices in sorted(priced, key=itemgetter(0))]
        quick = sum(price <= SLOW for price, _ in priced)
        slow = takewhile(lambda _: tries.spent < tries.limit * FOR_SLOW, singles[quick:])
        faulty = chain(with_fault(tries, NOTHING), with_number_of_fault(tries, NOTHING))
        for combinations in (singles[:quick], of_suspects(tries), starts, solved(tries, NOTHING), faulty, slow):
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
